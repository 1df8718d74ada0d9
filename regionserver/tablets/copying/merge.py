"""Consensus metadata of a copied replica: the promises of this server, merged with the knowledge of the source (TC-14).
Pure.

A copy brings rows and a log, never a vote. So three rules decide the promises under which a copied replica starts:

- **Term**: the higher one, of this server's memory and of the source.
- **Vote**: this server's own, if the term is its own. The source's vote is another member's, and is never taken over.
- **Members**: the source's. Its configuration belongs to the rows and the log that are copied.

A voter has acknowledged every entry of its former log, and a leader may have counted it. So the copied log must end at
or after the end of the former one, in the order in which Raft compares logs (§5.4.1): first term, then index. It then
holds every committed entry for which this voter was counted.
"""

from __future__ import annotations

from typing import NamedTuple

from regionserver.tablets.disk.consensus_meta import ConsensusMeta
from regionserver.tablets.disk.superblock import Memory


class SourceMeta(NamedTuple):
    """The source's knowledge of its group: its term, and the configuration in force where the rows end."""

    term: int
    config_term: int
    config_index: int
    #: Body of a CONFIG entry.
    configuration: bytes


def merged(tablet: str, number: int, own: Memory | None, source: SourceMeta) -> ConsensusMeta:
    """Return the consensus metadata of member `number` of a tablet that is copied.

    `own` is this server's memory of the same number; None if this server never had the number. Raise ValueError for a
    configuration that no build writes.
    """
    term, vote = source.term, 0
    if own is not None and own.term >= source.term:
        term, vote = own.term, own.vote
    return ConsensusMeta(tablet, number, source.config_term, source.config_index, source.configuration, term, vote)


def log_objection(own: Memory | None, last_term: int, last_index: int) -> str:
    """Return why a log that ends at this entry cannot replace the former one, "" if it can."""
    if own is None or (last_term, last_index) >= (own.last_term, own.last_index):
        return ""
    return (
        f"the copied log ends at entry {last_index} of term {last_term}; this member has acknowledged entries up to"
        f" {own.last_index} of term {own.last_term}"
    )
