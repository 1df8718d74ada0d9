"""Consensus metadata of one tablet on this server: number, configuration, term and vote. Pure.

While a replica is READY, the shared log has its present term and vote, and the older ones in this file do not count.
Once the replica is DELETED, its slot is gone, and this file makes the later votes of the tombstone durable.

    content := envelope "RKCM" format 1 (sealed.py) around a JSON object with the fields of ConsensusMeta
"""

from __future__ import annotations

from typing import Final

import msgspec

from coord.raft.membership import Configuration, decode_configuration
from regionserver.tablets.disk.layout import is_tablet
from regionserver.tablets.disk.sealed import SealedFile

MAGIC: Final = b"RKCM"
FORMAT: Final = 1


class ConsensusMeta(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A member's stored data about its group. `configuration` is the body of a CONFIG entry; (0, 0) is the position of
    the initial configuration."""

    tablet: str
    #: The member number of this server's replica, or of its former one.
    number: int
    config_term: int
    config_index: int
    configuration: bytes
    #: Term and the member voted for in that term, 0 for none.
    term: int = 0
    vote: int = 0

    def __post_init__(self) -> None:
        """Raise ValueError for contents that no build writes."""
        if not is_tablet(self.tablet):
            raise ValueError(f"{self.tablet!r} is not the name of a tablet")
        if self.number < 1:
            raise ValueError(f"member number {self.number} is below 1")
        if min(self.config_term, self.config_index, self.term, self.vote) < 0:
            raise ValueError("a term, an index or a vote is negative")
        if self.vote and not self.term:
            raise ValueError(f"a vote for {self.vote} in term 0")
        decode_configuration(self.configuration)

    def members(self) -> Configuration:
        """Return the configuration, decoded."""
        return decode_configuration(self.configuration)


_FILE: Final = SealedFile(MAGIC, FORMAT, ConsensusMeta)


def encode_meta(meta: ConsensusMeta) -> bytes:
    """Return the content of the file."""
    return _FILE.encode(meta)


def decode_meta(content: bytes, tablet: str, path: str) -> ConsensusMeta:
    """Return the consensus metadata of `tablet`.

    Raises:
        DamagedFile: The content is damaged, or belongs to another tablet.
        NewerFormat: A newer build wrote the file.
    """
    return _FILE.decode(content, tablet, path)


def with_promise(meta: ConsensusMeta, term: int, vote: int) -> ConsensusMeta:
    """Return `meta` with a later term, or with the first vote of its term.

    Raise ValueError if the term would decrease or the vote of a term would change. Raft §5.2, §5.4.1.
    """
    if term < meta.term:
        raise ValueError(f"tablet {meta.tablet}: term {term} is below the present term {meta.term}")
    if term == meta.term and meta.vote not in (0, vote):
        raise ValueError(f"tablet {meta.tablet}: the vote of term {term} is for {meta.vote}, not for {vote}")
    return msgspec.structs.replace(meta, term=term, vote=vote)
