"""The transitions of Progress are those of the table in its module's docstring, cell by cell."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from coord.raft.leadership import Leadership
from coord.raft.log import ConfigLog, RaftLog
from coord.raft.membership import Configuration
from coord.raft.messages import (
    APPEND_RESP,
    HEARTBEAT_RESP,
    Entry,
    Message,
    RaftConfig,
    RaftSnapshot,
)
from coord.raft.output import Output
from coord.raft.progress import PROBE, REPLICATE, SNAPSHOT, Progress

STATES: Final = {"PROBE": PROBE, "REPLICATE": REPLICATE, "SNAPSHOT": SNAPSHOT}


def _leadership(state: int, is_reachable: bool = True) -> tuple[Leadership, Progress]:
    """Return the leadership of node 1, and node 2 in `state`: it has acknowledged 4 of 9 entries."""
    config = Configuration([1, 2, 3])
    log = RaftLog(RaftSnapshot(0, 0, config), [Entry(1, i, 0, b"x") for i in range(1, 10)])
    lead = Leadership(1, 1, 2, RaftConfig(), log, ConfigLog(0, config), Output())
    lead.log.append(2, 1, b"")
    log.commit = log.applying = 6
    log.snapshot = RaftSnapshot(6, 1, config)
    peer = lead.by_id[2]
    peer.memory = 1
    peer.match = 4
    if state == REPLICATE:
        peer.become_replicate()
        peer.sent(7, 3, 0)
    elif state == SNAPSHOT:
        log.compact(6)
        peer.next = 5
        peer.become_snapshot(6)
    else:
        peer.become_probe(8)
        peer.waiting = True
    peer.validate(log.last)
    return lead, peer


def _answer(index: int, granted: bool, memory: int = 1, prev: int = 0) -> Message:
    return Message(APPEND_RESP, 2, 1, 2, prev, 1, match_index=index, granted=granted, memory=memory)


def _compacted(lead: Leadership, peer: Progress) -> None:
    if peer.state != SNAPSHOT:
        lead.log.compact(6)
        peer.become_probe(5)
        lead._send_to(peer)


def _heartbeat(lead: Leadership, peer: Progress) -> None:
    lead.on_heartbeat_resp(Message(HEARTBEAT_RESP, 2, 1, 2, match_index=3))


EVENTS: Final[dict[str, Callable[[Leadership, Progress], object]]] = {
    "append acknowledged": lambda lead, peer: lead.on_append_resp(_answer(7, True)),
    "append rejected": lambda lead, peer: lead.on_append_resp(_answer(5, False, prev=7)),
    "heartbeat shows a shorter log": _heartbeat,
    "link broken": lambda lead, peer: lead.peer_down(2),
    "peer replies from a new memory": lambda lead, peer: lead.on_append_resp(_answer(0, False, memory=5)),
    "needed entries are compacted": _compacted,
    "transfer ended": lambda lead, peer: lead.snapshot_status(2, True),
}


def _cells() -> list[tuple[str, str, str]]:
    """Return (event, state, state afterwards) of each cell of the docstring's table."""
    # From the source: a compiled module has no docstring.
    source = Path(__file__).resolve().parents[4] / "coord" / "raft" / "progress.py"
    lines = (ast.get_docstring(ast.parse(source.read_text("utf-8"))) or "").splitlines()
    head = next(i for i, line in enumerate(lines) if "in PROBE" in line)
    columns = [re.split(r" {2,}", line.strip()) for line in lines[head:] if line.strip()]
    states = [name.removeprefix("in ") for name in columns[0][1:]]
    cells = []
    for event, *after in columns[1 : 1 + len(EVENTS)]:
        assert len(after) == len(states), event
        cells += [(event, state, cell) for state, cell in zip(states, after, strict=True)]
    return cells


@pytest.mark.parametrize(("event", "state", "cell"), _cells())
def test_transition(event: str, state: str, cell: str) -> None:
    """The event moves the peer from the state to the state in the cell."""
    lead, peer = _leadership(STATES[state])
    EVENTS[event](lead, peer)
    expected = STATES[state] if cell == "-" else STATES[re.match(r"\w+", cell)[0]]
    assert peer.state == expected
    peer.validate(lead.log.last)


def test_the_table_has_every_event() -> None:
    """No row is missing, and no row has another name."""
    assert {event for event, _, _ in _cells()} == set(EVENTS)


def test_late_answers_change_no_state() -> None:
    """The notes below the table: a reply below the acknowledged index says nothing about the present."""
    lead, peer = _leadership(PROBE)
    lead.on_append_resp(_answer(3, True))
    assert peer.state == PROBE
    lead, peer = _leadership(REPLICATE)
    lead.on_append_resp(_answer(2, False, prev=4))
    assert peer.state == REPLICATE
    lead, peer = _leadership(SNAPSHOT)
    lead.on_append_resp(_answer(5, True))
    assert peer.state == SNAPSHOT, "entries behind 5 are compacted"
    lead, peer = _leadership(SNAPSHOT)
    lead.log.snapshot = RaftSnapshot(3, 1, lead.config)
    peer.become_probe(5)
    lead._send_to(peer)
    assert peer.state == PROBE, "the log does not continue the snapshot"


def test_a_late_rejection_does_not_undo_what_the_peer_acknowledged() -> None:
    """Only a peer whose newest reply to a heartbeat shows a shorter log has lost entries (simulation, seed 9000187).

    Otherwise the leader would probe below the acknowledged index, for entries that its log has dropped because all
    peers have them.
    """
    lead, peer = _leadership(PROBE)
    lead.on_append_resp(_answer(5, True))
    peer.become_probe(6)
    late = _answer(4, False, prev=5)
    lead.on_append_resp(late)
    assert (peer.match, peer.next) == (5, 6)
    lead.on_heartbeat_resp(Message(HEARTBEAT_RESP, 2, 1, 2, match_index=9, context=8))
    lead.on_heartbeat_resp(Message(HEARTBEAT_RESP, 2, 1, 2, match_index=2, context=7))
    lead.on_append_resp(late)
    assert (peer.match, peer.next) == (5, 6), "the reply to an older heartbeat is late, too"
    lead.on_heartbeat_resp(Message(HEARTBEAT_RESP, 2, 1, 2, match_index=4, context=8))
    lead.on_append_resp(late)
    assert (peer.match, peer.next) == (0, 5)


def test_match_stays_below_next_during_a_snapshot() -> None:
    """A late acknowledgement of an append that was sent before the snapshot raises both."""
    lead, peer = _leadership(SNAPSHOT)
    lead.on_append_resp(_answer(5, True))
    assert (peer.match, peer.next, peer.state) == (5, 6, SNAPSHOT)
    peer.validate(lead.log.last)
