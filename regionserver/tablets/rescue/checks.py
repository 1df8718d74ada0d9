"""A server's checks of a ForceConfiguration in their order, and the entry that it appends. Pure.

The request breaks Raft's rules: a minority decides. So it is refused while the rules can still be kept, that is, while
a leader is known or a majority of the voters could elect one. The entry has a term above the terms of all remaining
members, and follows the log of the receiver as if a leader of that term had appended it. The receiver records a vote
for itself in that term, so it votes for no other candidate there.

Kudu's `unsafe_change_config` works in the same way. There an unfinished change of members made the tool fail
(KUDU-3010); here the entry simply follows that change in the log.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final, NamedTuple

from coord.raft.membership import Configuration
from regions.replication.config import majority
from regionserver.tablets.host.members import members_of, with_members
from regionserver.tablets.rescue.messages import ForceConfiguration


class RescueFacts(NamedTuple):
    """A ForceConfiguration, and the replica on the server that received it."""

    order: ForceConfiguration
    #: Uuid of this server.
    server: str
    #: The replica that runs here: number (0 without one), term, end of its log.
    number: int = 0
    term: int = 0
    last_term: int = 0
    last_index: int = 0
    #: Number of the leader that it knows; 0: none.
    leader: int = 0
    #: Voters of its configuration, and those whose replicas answer, including this one.
    voters: Collection[int] = ()
    answering: Collection[int] = ()


class RescueCheck(NamedTuple):
    """One row of the checks. The first row that applies decides; `why` has the names of fields of RescueFacts."""

    applies: Callable[[RescueFacts], bool]
    why: str


def _is_illegal(facts: RescueFacts) -> bool:
    keep = set(facts.order.keep)
    return facts.number not in keep or not keep <= set(facts.voters) or keep == set(facts.voters)


def _is_not_as_seen(facts: RescueFacts) -> bool:
    return (facts.order.last_term, facts.order.last_index) != (facts.last_term, facts.last_index)


# fmt: off
CHECKS: Final[tuple[RescueCheck, ...]] = (
    RescueCheck(lambda f: f.order.recipient != f.server, "this server is {server}"),
    RescueCheck(lambda f: f.number == 0 or f.number != f.order.number, "the named member does not run here"),
    RescueCheck(lambda f: f.leader != 0, "member {leader} leads: `rk tablet change-config` changes members safely"),
    RescueCheck(lambda f: len(f.answering) >= majority(len(f.voters)),
        "a majority of the voters {voters} answers ({answering}): they elect a leader by themselves"),
    RescueCheck(_is_illegal, "the members that stay must be some of the voters {voters}, {number} among them"),
    RescueCheck(lambda f: f.order.term <= f.term, "the replica is in term {term}, and the order needs a later one"),
    RescueCheck(_is_not_as_seen, "its log ends at entry {last_index} of term {last_term} now: look again"),
)
# fmt: on


def objection(facts: RescueFacts) -> str:
    """Return why the order is refused, "" if it may be carried out. The checks change nothing."""
    for row in CHECKS:
        if row.applies(facts):
            shown = facts._asdict()
            shown["voters"] = ", ".join(map(str, sorted(facts.voters)))
            shown["answering"] = ", ".join(map(str, sorted(facts.answering)))
            return row.why.format(**shown)
    return ""


def forced(configuration: Configuration, keep: Collection[int]) -> Configuration:
    """Return the configuration with the voters `keep` alone. Learners and newcomers are left out, and made anew."""
    return with_members(configuration, tuple(one for one in members_of(configuration) if one.number in keep))
