"""Checks whether a data directory may be used: its own identity, its own tablets, its own log. Pure.

A replica's files contain its vote, so they must never be used twice or by another server. A server therefore refuses to
start, and changes nothing, if it finds

- a copy of a directory: the lock file has another inode than the one noted when the directory got its first tablet;
- tablets without the identity to which they belong, or an identity whose tablets are gone;
- tablets of another server;
- READY tablets of which none is in the shared log, or no shared log at all (TC-18).

A single damaged file is different: it affects only its tablet (startup.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from coord.errors import ConfigError
from regionserver.tablets.disk.layout import BLOCKS, LOG
from regionserver.tablets.disk.life import DataState
from regionserver.tablets.disk.startup import Found
from regionserver.tablets.disk.superblock import Superblock

#: Number of tablets named in a message; the others are only counted.
_NAMED_MAX: Final = 3


def _new_server(path: str) -> str:
    """Return how an operator gives up the replicas in a directory."""
    return (
        f"to give up this server's replicas, run `rk server new-identity --data-dir {path}`: the server gets a new"
        " identity, and its replicas are replaced"
    )


class DirectorySeen(NamedTuple):
    """Contents of a data directory before any file is read."""

    #: The directory, for messages.
    path: str
    #: Inode of the lock file, and inode recorded in instance.json (None if the directory never had tablets).
    inode: int
    noted_inode: int | None
    #: True if an operator has declared that the directory was moved here.
    is_accepted: bool
    #: Folders of tablets that are missing.
    missing: Sequence[str]
    #: Superblocks, and files of the shared log.
    blocks: int
    segments: int


def check_directory(seen: DirectorySeen, moved_file: str) -> None:
    """Raise ConfigError unless the directory matches its identity.

    `moved_file` is the name of the file with which an operator accepts a moved directory.
    """
    if seen.noted_inode is None:
        if seen.blocks:
            raise ConfigError(
                f"{seen.path} holds {seen.blocks} tablets, and its instance.json is not theirs: nothing was changed;"
                f" restore instance.json; {_new_server(seen.path)}"
            )
        return
    if seen.missing:
        raise ConfigError(
            f"{seen.path}/{seen.missing[0]} is gone, and this server has had tablets: nothing was changed; put the"
            f" folder back; {_new_server(seen.path)}"
        )
    if not seen.segments:
        raise ConfigError(
            f"{seen.path}/{LOG} has no log, and this server has promised votes in it: nothing was changed; put the log"
            f" back; {_new_server(seen.path)}"
        )
    if seen.inode != seen.noted_inode and not seen.is_accepted:
        raise ConfigError(
            f"{seen.path} is a copy: the original's lock file had inode {seen.noted_inode}, this one has {seen.inode}."
            " Nothing was changed. Two servers with one identity vote twice and lose acknowledged rows: start the"
            f" server on the original. If the directory was moved, and nothing will ever start on the original again,"
            f" create {seen.path}/{moved_file} and start once more"
        )


def check_tablets(path: str, server: str, found: Sequence[Found]) -> None:
    """Raise ConfigError if the superblocks belong to another server, or the log does not belong to the tablets."""
    blocks = [one.block for one in found if isinstance(one.block, Superblock)]
    foreign = [block for block in blocks if block.server != server]
    if foreign:
        raise ConfigError(
            f"{path}/{BLOCKS} has superblocks of server {foreign[0].server}"
            f" ({_names(block.tablet for block in foreign)}), and this is server {server}: nothing was changed; put"
            f" each server's files back into its own directory; {_new_server(path)}"
        )
    ready = [one for one in found if isinstance(one.block, Superblock) and one.block.data_state is DataState.READY]
    if ready and not any(one.own_slot() for one in ready):
        raise ConfigError(
            f"{path}/{LOG} knows none of the {len(ready)} replicas of this server"
            f" ({_names(one.tablet for one in ready)}): it is another log; nothing was changed; put the right one back;"
            f" {_new_server(path)}"
        )


def _names(tablets: Iterable[str]) -> str:
    names = sorted(tablets)
    more = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
    return ", ".join(names[:_NAMED_MAX]) + more
