"""`validate` notices each broken invariant: the test breaks one place of a sound core, and the error names the
place."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import pytest

from coord.raft.core import RaftCore
from coord.raft.leadership import Leadership
from coord.raft.membership import CatchUp, Configuration
from coord.raft.messages import (
    APPEND_RESP,
    CANDIDATE,
    CONFIG,
    FOLLOWER,
    HEARTBEAT,
    LEADER,
    VOTE,
    VOTE_RESP,
    Entry,
    Message,
)
from coord.raft.output import Write
from coord.raft.progress import PROBE, REPLICATE, SNAPSHOT, Progress
from coord.raft.reads import PendingRead
from tests.datadriven.raft_group import RaftGroup

Break = Callable[[RaftCore], object]


def core_in(role: str) -> RaftCore:
    """Return a core that leads, follows or stands for election, with a few entries and something in flight."""
    group = RaftGroup()
    for command in ("group voters=1,2,3", "elect 1", "propose 1 a b", "run", "propose 1 c", "deliver 1->2", "read 1 7"):
        group.run(command)
    if role == "candidate":
        group.run("quiet")
        group.run("campaign 2")
        group.run("deliver 2->3")
        group.run("deliver 3->2")
    core = group.nodes[1 if role == "leader" else 2].core
    assert core is not None
    assert core.role == {"leader": LEADER, "follower": FOLLOWER, "candidate": CANDIDATE}[role]
    core.validate()
    return core


def _lead(core: RaftCore) -> Leadership:
    assert core.leadership is not None
    return core.leadership


def _peer(core: RaftCore) -> Progress:
    peer = _lead(core).by_id[3]
    assert peer.state == REPLICATE
    assert peer.in_flight() == 1
    return peer


def _set(target: object, **values: object) -> None:
    for name, value in values.items():
        setattr(target, name, value)


def _without_config_entry(core: RaftCore) -> None:
    core.configs.append(core.log.last, Configuration([1, 2]), 1)


def _other_config_entry(core: RaftCore) -> None:
    core.log.entries[-1] = Entry(core.log.last_term, core.log.last, CONFIG, Configuration([1, 2]).encode())
    core.configs.append(core.log.last, Configuration([1, 2, 4]), 1)


def _two_roles(core: RaftCore) -> None:
    config = Configuration([1, 2])
    core.log.entries[-1] = Entry(core.log.last_term, core.log.last, CONFIG, config.encode())
    core.configs.append(core.log.last, config, 1)
    config.learners.append(2)


def _idle_with_empty_append(core: RaftCore) -> None:
    peer = _peer(core)
    peer.become_probe(1)
    peer.wants_empty_append = True


#: role, broken place, text of the error
LOG: Final[list[tuple[str, Break, str]]] = [
    ("leader", lambda c: c.log.entries.pop(1), "is at position 2"),
    ("leader", lambda c: _set(c.log.entries[1], term=9), "follows one of term 9"),
    ("leader", lambda c: c.log.entries.pop(), "the entries end at"),
    ("leader", lambda c: _set(c.log, last_term=0), "the last entry has 1"),
    ("follower", lambda c: _set(c.log, applying=c.log.commit + 1), "committed only"),
    ("follower", lambda c: _set(c.log, applying=-1), "applying only -1"),
    ("follower", lambda c: _set(c.log.snapshot, index=99), "snapshot at 99"),
    ("follower", lambda c: _set(c.log, commit=c.log.last + 1), "the log ends at"),
    ("follower", lambda c: _set(c.log, stable=c.log.persisting + 1), "written only up to"),
    ("follower", lambda c: _set(c.log, persisting=c.log.last + 1, stable=c.log.last + 1), "written up to"),
]
CONFIGS: Final[list[tuple[str, Break, str]]] = [
    ("follower", lambda c: c.configs.indexes.append(3), "configurations at"),
    ("follower", lambda c: _set(c.configs, current=Configuration([1])), "the newest is"),
    ("follower", lambda c: _set(c.configs, indexes=[3]), "after the snapshot"),
    ("follower", _without_config_entry, "not as in the log"),
    ("follower", _other_config_entry, "differs from its entry"),
    ("follower", _two_roles, "two roles"),
]
OUTPUT: Final[list[tuple[str, Break, str]]] = [
    ("follower", lambda c: c._output.messages.append(Message(VOTE, 2, 1, 1)), "before the disk has"),
    ("follower", lambda c: c._output.messages.append(Message(VOTE_RESP, 2, 1, 1, granted=True)), "before the disk has"),
    ("follower", lambda c: c._output.messages.append(Message(APPEND_RESP, 2, 1, 1, granted=True)), "before the disk"),
    ("follower", lambda c: c._output.after_persist.append(Message(HEARTBEAT, 2, 1, 1)), "waits for the disk"),
    ("follower", lambda c: c._writes.writes.extend([Write(1, 1, 1, 1), Write(1, 1, 1, 1)]), "waits behind that of"),
    ("follower", lambda c: c._writes.writes.append(Write(1, 1, 0, 0)), "takes the term from 1 to 0"),
    ("follower", lambda c: c._writes.writes.append(Write(999, 1, 1, 1)), "the last Ready is"),
    ("follower", lambda c: c._writes.writes.append(Write(1, 1, 9, 1)), "term 9 is written"),
    ("follower", lambda c: _set(c._last_ready, term=9), "the last Ready was in term 9"),
    ("follower", lambda c: _set(c, vote=3), "has changed from 1 to 3"),
]
CORE: Final[list[tuple[str, Break, str]]] = [
    ("leader", lambda c: _set(c, leadership=None), "a leader with a leader's state: False"),
    ("follower", lambda c: _set(c, role=LEADER), "a leader with a leader's state: False"),
    ("follower", lambda c: (_set(c, term=0), _set(c._last_ready, term=0), _set(c._writes, term=0)), "the log ends in"),
    ("follower", lambda c: _set(c, leader=2), "leader is 2"),
    ("candidate", lambda c: _set(c, leader=1), "a candidate follows 1"),
    ("follower", lambda c: _set(c, _votes={1: True}), "counts the votes"),
    ("candidate", lambda c: (_set(c, vote=0), _set(c._last_ready, vote=0)), "voted for 0"),
    ("follower", lambda c: _set(c.log, stable=c.log.last - 1), "nothing is being written"),
    ("leader", lambda c: (_set(c, term=2), _set(c.log, last_term=1)), "leads term 1, the term is 2"),
]
LEADERSHIP: Final[list[tuple[str, Break, str]]] = [
    ("leader", lambda c: _set(_lead(c), config=Configuration([1, 2, 3])), "in force is"),
    ("leader", lambda c: _lead(c).peers.pop(), "replicates to [2]"),
    ("leader", lambda c: _lead(c).by_id.pop(2), "by_id has [3]"),
    ("leader", lambda c: _lead(c).by_id.update({2: Progress(2, 1, 0)}), "two Progress objects for 2"),
    ("leader", lambda c: _set(_peer(c), counts=False), "the replies of 3 count: False"),
    ("leader", lambda c: _set(_peer(c), commit_sent=99), "was sent the commit index 99"),
    ("leader", lambda c: _set(_peer(c), read_round=99), "has confirmed read round 99"),
    ("leader", lambda c: _set(_peer(c), last_received=99), "at tick 99"),
    ("leader", lambda c: _set(_lead(c), counts=False), "the leader counts: False"),
    ("leader", lambda c: _lead(c).catching_up.update({3: CatchUp(1, 1)}), "[3] catch up"),
    ("leader", lambda c: _set(_lead(c), transferee=4), "transfer to 4, not a voter"),
    ("leader", lambda c: (_set(c.log, last_term=0), _set(c.log.entries[-1], term=0)), "follows one of term 1"),
    ("leader", lambda c: _set(_lead(c).reads, newest=5), "is open in the place of"),
    ("leader", lambda c: _set(_lead(c).reads.open[0], index=99), "at 99, commit is"),
]
PROGRESS: Final[list[tuple[str, Break, str]]] = [
    ("leader", lambda c: _set(_peer(c), state=7), "the unknown state 7"),
    ("leader", lambda c: _set(_peer(c), next=1), "its match index is"),
    ("leader", lambda c: _set(_peer(c), match=99, next=100), "match index of 3 is 99, the leader's log ends"),
    ("leader", lambda c: _set(_peer(c), next=99), "next of 3 is 99, the leader's log ends"),
    ("leader", lambda c: _set(_peer(c), waiting=True), "waits for a probe's answer"),
    ("leader", lambda c: _set(_peer(c), snapshot_index=2), "the snapshot at 2 is in transfer to 3 in state 1"),
    ("leader", lambda c: _set(_peer(c), state=SNAPSHOT), "the snapshot at 0 is in transfer to 3 in state 2"),
    ("leader", lambda c: _set(_peer(c), state=PROBE), "are in flight in state 0"),
    (
        "leader",
        lambda c: (_peer(c).become_probe(1), _set(_lead(c).by_id[3], wants_empty_append=True)),
        "an empty append in",
    ),
    ("leader", lambda c: _peer(c)._sizes.append(0), "1 appends, 2 sizes"),
    ("leader", lambda c: _set(_peer(c), _bytes=99), "99 bytes to 3 in flight"),
    ("leader", lambda c: _set(_peer(c), match=_peer(c).next - 1), "is in flight, after"),
]


@pytest.mark.parametrize(
    ("role", "spoil", "sentence"),
    LOG + CONFIGS + OUTPUT + CORE + LEADERSHIP + PROGRESS,
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_broken_invariant_is_named(role: str, spoil: Break, sentence: str) -> None:
    core = core_in(role)
    if role == "leader":
        _lead(core).reads.arrived.append(PendingRead(1, 8))
        _lead(core).reads.begin(core.log.commit)
    spoil(core)
    with pytest.raises(AssertionError, match=re.escape(sentence)):
        core.validate()


@pytest.mark.parametrize("role", ["leader", "follower", "candidate"])
def test_validate_changes_nothing(role: str) -> None:
    core = core_in(role)
    waits = core.has_ready()
    core.validate()
    assert core.has_ready() == waits
