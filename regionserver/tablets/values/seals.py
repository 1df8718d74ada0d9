"""The seal of a tablet that is split or merged: plain values, and the effect of an entry about the seal. Pure.

A split or merge makes the daughters from the replicas of their parents (`docs/tablets.md`). So the rows must not change
any more, and all replicas must agree on the last entry that changed them. So the seal is an entry of the log like a
write, and the replicas apply it to their rows. A sealed tablet carries out no write and answers no read.

Because the seal is a state of the rows, it needs no memory of its own: a new leader has it before it answers anything,
a restart reads it with the rows, and a copied replica has it with the copied rows.

Each attempt to split or merge a tablet has a name that is never used again. So a late entry that removes a seal changes
nothing. A late entry that seals the tablet changes nothing if its attempt was the last canceled one. For an earlier
attempt it seals the tablet; then the leader reports the seal, and the master orders its removal.
"""

from __future__ import annotations

from typing import Final

import msgspec

from regionserver.tablets.values.operations import DONE, SEALED, SUPERSEDED

#: Longest name of an attempt.
RESHARDING_BYTES_MAX: Final = 64


class SealCommand(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Seal the tablet for an attempt to split or merge it, or remove the seal of the attempt.

    `epoch` is the epoch of the ordering master, `time_ms` the leader's time.
    """

    resharding: str
    epoch: int
    time_ms: int
    is_wanted: bool = True


class Seal(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The seal in a tablet's rows. The default: never sealed."""

    #: Name of the attempt for which the tablet is sealed; "": it is not sealed.
    resharding: str = ""
    epoch: int = 0
    #: Term and index of the entry that sealed it.
    term: int = 0
    index: int = 0
    #: Name of the attempt whose seal was taken away last.
    canceled: str = ""

    @property
    def is_set(self) -> bool:
        """Return True if the tablet is sealed."""
        return bool(self.resharding)


def seal_after(seal: Seal, command: SealCommand, term: int, index: int) -> tuple[Seal, int]:
    """Return the seal after the entry at (`term`, `index`) with this command, and the code of the entry's outcome.

    DONE: the command's state is reached. SEALED: the tablet is sealed for another attempt. SUPERSEDED: the seal of this
    attempt was removed before. Only a master of the same or a later epoch removes a seal, because an earlier master may
    not know the progress of the attempt.
    """
    name = command.resharding
    if seal.resharding == name and command.is_wanted:
        return seal, DONE
    if seal.is_set and (seal.resharding != name or command.epoch < seal.epoch):
        return seal, SEALED
    if not command.is_wanted:
        return Seal(canceled=name), DONE
    if seal.canceled == name:
        return seal, SUPERSEDED
    return Seal(name, command.epoch, term, index), DONE
