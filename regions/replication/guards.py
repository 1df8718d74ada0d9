"""A server's checks, in their order, of an OPEN, a CLOSE and a change of members of a tablet. Pure.

All checks come first, changes after them (X13). As for every order, the envelope (epoch, recipient, start code,
cluster) has been checked before.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Final, NamedTuple

from regions.messages.heartbeat import TAKES_PART, ReplicaState
from regions.messages.server import ClosePurpose, TabletClosing, TabletOpening
from regions.messages.tablets import ChangeAnswer, ChangeConfig, ConfigChange
from regions.records.members import NO_CONFIG, ConfigId, Member, MemberRole
from regions.replication.config import objection_to_change


class ReplicaOnDisk(NamedTuple):
    """A server's replica of the tablet: the content of its superblock and its log."""

    number: int
    state: ReplicaState
    #: The latest configuration that the replica knows to be committed, and whether this one has the replica's number.
    config_id: ConfigId = NO_CONFIG
    is_member: bool = True


class OrderAnswer(enum.Enum):
    """Reaction of a server to an order."""

    MAKE = "make the replica: OPENING, consensus metadata, superblock, OPENED"
    WAKE = "OPENING, OPENED: the replica is there"
    FAILED = "FAILED: the replica cannot run"
    AMNESIA = "refused: this server has no memory of a number that it has had"
    OLD_NUMBER = "refused: this server has a later number"
    ILLEGAL_STATE = "refused: the replica is in another state than the order assumes"
    IN_PROGRESS = "the same order is being carried out"
    CLOSE = "CLOSING, then the files as the purpose says, CLOSED"
    DONE = "done already"
    STALE_CONFIG = "refused: this server knows a later configuration, which has the number"


class OpenFacts(NamedTuple):
    """An OPEN of one number, and the replica that the server has; None without a superblock."""

    number: int
    opening: TabletOpening
    local: ReplicaOnDisk | None


class CloseFacts(NamedTuple):
    """A CLOSE of one number, and the replica that the server has; None without a superblock."""

    number: int
    closing: TabletClosing
    local: ReplicaOnDisk | None


class OpenCheck(NamedTuple):
    """One row of the checks of an OPEN."""

    when: str
    applies: Callable[[OpenFacts], bool]
    answer: OrderAnswer


class CloseCheck(NamedTuple):
    """One row of the checks of a CLOSE."""

    when: str
    applies: Callable[[CloseFacts], bool]
    answer: OrderAnswer


_Facts = OpenFacts | CloseFacts


def _is_nowhere(facts: _Facts) -> bool:
    return facts.local is None


def _was_forgotten(facts: OpenFacts) -> bool:
    return facts.local is None and facts.opening.must_exist


def _is_not_named(facts: OpenFacts) -> bool:
    return facts.local is None and all(one.number != facts.number for one in facts.opening.initial)


def _has_later_number(facts: _Facts) -> bool:
    return facts.local is not None and facts.local.number > facts.number


def _has_earlier_number(facts: _Facts) -> bool:
    return facts.local is not None and facts.local.number < facts.number


def _is_in(*states: ReplicaState) -> Callable[[_Facts], bool]:
    return lambda facts: facts.local is not None and facts.local.state in states


def _is_known_member(facts: CloseFacts) -> bool:
    closing, local = facts.closing, facts.local
    if closing.purpose is not ClosePurpose.TOMBSTONE or local is None:
        return False
    return local.is_member and local.config_id > closing.config_id


def _rests_already(facts: CloseFacts) -> bool:
    return facts.closing.purpose is ClosePurpose.REST and _is_in(_S.RESTING)(facts)


def _is_removed_already(facts: CloseFacts) -> bool:
    """A deletion takes away the tombstone as well, so for that purpose a tombstone is not the end."""
    return facts.closing.purpose is not ClosePurpose.DELETE and _is_in(_S.TOMBSTONE, _S.LOST)(facts)


def _always(_: CloseFacts) -> bool:
    return True


_S: Final = ReplicaState
_N: Final = OrderAnswer

# fmt: off
OPEN_CHECKS: Final[tuple[OpenCheck, ...]] = (
    OpenCheck("no superblock, and the replica was begun",  _was_forgotten,                  _N.AMNESIA),
    OpenCheck("no superblock, and the number is not named", _is_not_named,                  _N.ILLEGAL_STATE),
    OpenCheck("no superblock",                             _is_nowhere,                     _N.MAKE),
    OpenCheck("a later number is here",                    _has_later_number,               _N.OLD_NUMBER),
    OpenCheck("an earlier number is here",                 _has_earlier_number,             _N.ILLEGAL_STATE),
    OpenCheck("its memory is lost, or it was removed",     _is_in(_S.LOST, _S.TOMBSTONE),   _N.AMNESIA),
    OpenCheck("it is being copied, or stops",              _is_in(_S.COPYING, _S.STOPPING), _N.ILLEGAL_STATE),
    OpenCheck("it cannot run",                             _is_in(_S.FAILED),               _N.FAILED),
    OpenCheck("it is there",                               _is_in(*TAKES_PART, _S.RESTING), _N.WAKE),
)
CLOSE_CHECKS: Final[tuple[CloseCheck, ...]] = (
    CloseCheck("nothing is here",                             _is_nowhere,          _N.DONE),
    CloseCheck("a later number is here",                      _has_later_number,    _N.OLD_NUMBER),
    CloseCheck("an earlier number is here",                   _has_earlier_number,  _N.ILLEGAL_STATE),
    CloseCheck("a later configuration has the number",        _is_known_member,     _N.STALE_CONFIG),
    CloseCheck("it stops already",                            _is_in(_S.STOPPING),  _N.IN_PROGRESS),
    CloseCheck("it is to rest, and rests",                    _rests_already,       _N.DONE),
    CloseCheck("its files are gone, and the tombstone stays", _is_removed_already,  _N.DONE),
    CloseCheck("it is there",                                 _always,              _N.CLOSE),
)
# fmt: on


def answer_to_open(facts: OpenFacts) -> OrderAnswer:
    """Return a server's answer to an OPEN."""
    return next(check.answer for check in OPEN_CHECKS if check.applies(facts))


def answer_to_close(facts: CloseFacts) -> OrderAnswer:
    """Return a server's answer to a CLOSE."""
    return next(check.answer for check in CLOSE_CHECKS if check.applies(facts))


# --- changes of the configuration -------------------------------------------------------------------------------------


class ChangeFacts(NamedTuple):
    """A ChangeConfig, and the state of the group on the server that has received it."""

    change: ChangeConfig
    #: True if this replica leads, and its number.
    leads: bool
    number: int
    #: The committed configuration that it knows.
    config_id: ConfigId
    members: tuple[Member, ...]
    #: The newest configuration is not committed, or leadership is being transferred.
    is_pending: bool = False
    #: An entry of the leader's term is committed.
    is_settled: bool = True
    #: A majority of the voters of the wanted configuration has answered lately.
    is_safe: bool = True

    def member(self) -> Member | None:
        """Return the member that the change names, None if the committed configuration does not have it."""
        return next((one for one in self.members if one.number == self.change.number), None)


class ChangeCheck(NamedTuple):
    """One row of the checks of a ChangeConfig. `answer` None: append the wanted configuration."""

    when: str
    applies: Callable[[ChangeFacts], bool]
    answer: ChangeAnswer | None


def is_already_so(facts: ChangeFacts) -> bool:
    """Return True if the committed configuration has the member as the change wants it."""
    change, member = facts.change, facts.member()
    if change.change is ConfigChange.REMOVE:
        return member is None
    if member is None or member.uuid != change.uuid:
        return False
    if change.change is ConfigChange.DEMOTE:
        return member.role is MemberRole.LEARNER
    if change.change is ConfigChange.ADD and change.role is MemberRole.LEARNER:
        return True
    return member.role is not MemberRole.LEARNER


def wanted_members(facts: ChangeFacts) -> tuple[Member, ...]:
    """Return the members after the change. A new voter begins as a PRE_VOTER (FW-08)."""
    change = facts.change
    rest = [one for one in facts.members if one.number != change.number]
    if change.change is ConfigChange.REMOVE:
        return tuple(rest)
    is_learner = change.change is ConfigChange.DEMOTE or (
        change.change is ConfigChange.ADD and change.role is MemberRole.LEARNER
    )
    role = MemberRole.LEARNER if is_learner else MemberRole.PRE_VOTER
    return tuple(sorted([*rest, Member(change.number, change.uuid, role)], key=lambda one: one.number))


def _leads_elsewhere(facts: ChangeFacts) -> bool:
    return not facts.leads


def _is_another_config(facts: ChangeFacts) -> bool:
    return facts.change.expect != facts.config_id


def _is_another_server(facts: ChangeFacts) -> bool:
    member = facts.member()
    return member is not None and member.uuid != facts.change.uuid


def _is_no_member(facts: ChangeFacts) -> bool:
    return facts.change.change is not ConfigChange.ADD and facts.member() is None


def _is_old_number(facts: ChangeFacts) -> bool:
    """Numbers rise and are never used twice, so a new one is above those of all members."""
    if facts.change.change is not ConfigChange.ADD or facts.member() is not None:
        return False
    return facts.change.number <= max((one.number for one in facts.members), default=0)


def _is_second_replica(facts: ChangeFacts) -> bool:
    change = facts.change
    if change.change is not ConfigChange.ADD:
        return False
    return any(one.uuid == change.uuid and one.number != change.number for one in facts.members)


def _is_unreachable(facts: ChangeFacts) -> bool:
    change = facts.change
    return change.change is ConfigChange.ADD and not (change.uuid and change.host and change.peer_port)


def _leaves_no_voter(facts: ChangeFacts) -> bool:
    return bool(objection_to_change(facts.members, wanted_members(facts)))


def _removes_the_leader(facts: ChangeFacts) -> bool:
    if facts.change.change not in (ConfigChange.REMOVE, ConfigChange.DEMOTE):
        return False
    return facts.change.number == facts.number


_C: Final = ChangeAnswer

# fmt: off
CHANGE_CHECKS: Final[tuple[ChangeCheck, ...]] = (
    ChangeCheck("another member leads",                         _leads_elsewhere,            _C.NOT_LEADER),
    ChangeCheck("the configuration is so already",              is_already_so,               _C.DONE),
    ChangeCheck("another configuration is committed",           _is_another_config,          _C.STALE_CONFIG),
    ChangeCheck("a change or a transfer is under way",          lambda f: f.is_pending,      _C.PENDING),
    ChangeCheck("no entry of this term is committed",           lambda f: not f.is_settled,  _C.NOT_SETTLED),
    ChangeCheck("the number belongs to another server",         _is_another_server,          _C.ILLEGAL),
    ChangeCheck("the number is not a member's",                 _is_no_member,               _C.ILLEGAL),
    ChangeCheck("the number is not above all members'",         _is_old_number,              _C.ILLEGAL),
    ChangeCheck("the server has another member of the tablet",  _is_second_replica,          _C.ILLEGAL),
    ChangeCheck("the new member's server has no peer address",  _is_unreachable,             _C.ILLEGAL),
    ChangeCheck("no voter would be left",                       _leaves_no_voter,            _C.ILLEGAL),
    ChangeCheck("the member leads",                             _removes_the_leader,         _C.LEADS),
    ChangeCheck("no majority of the new voters answers",        lambda f: not f.is_safe,     _C.UNSAFE),
    ChangeCheck("the change is one step",                       lambda _: True,              None),
)
# fmt: on


def check_of_change(facts: ChangeFacts) -> ChangeCheck:
    """Return the row that decides about a change of the configuration."""
    return next(check for check in CHANGE_CHECKS if check.applies(facts))
