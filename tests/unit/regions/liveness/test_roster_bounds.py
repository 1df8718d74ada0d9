"""The roster of heartbeats is bounded, whatever servers are invented, and drops invented ones soon."""

from __future__ import annotations

import pytest

from regions.liveness import roster as module
from regions.liveness.roster import DROPPED_MS, KNOWN_BEATS, MEMBERS_MAX, SILENT_MS, UNKNOWN_DROPPED_MS, Roster
from regions.messages.heartbeat import Heartbeat
from regions.records.model import Incarnation


def send(roster: Roster, uuid: str, now_ms: int, beats: int = 1) -> bool:
    """Send heartbeats of a server; return True if the last one was accepted."""
    member = roster.find(uuid)
    begin = 1 if member is None else member.sequence + 1
    return all(roster.accept(Heartbeat("c", Incarnation(uuid, 1), begin + n), now_ms) for n in range(beats))


def test_invented_servers_are_bounded_and_known_ones_stay() -> None:
    """At the limit exactly nobody gives way; beyond it those that are not known do, the longest silent ones first."""
    roster = Roster()
    send(roster, "honest", 0, KNOWN_BEATS)
    for number in range(MEMBERS_MAX - 1):
        assert send(roster, f"ghost-{number}", number)
    assert (len(roster), roster.crowded) == (MEMBERS_MAX, 0)

    assert send(roster, "one more", MEMBERS_MAX)
    assert len(roster) == MEMBERS_MAX - MEMBERS_MAX // 10 + 1
    assert roster.crowded == MEMBERS_MAX // 10
    assert roster.find("honest") is not None
    assert roster.find("ghost-0") is None
    assert roster.find(f"ghost-{MEMBERS_MAX - 2}") is not None
    for number in range(3 * MEMBERS_MAX):
        send(roster, f"later-{number}", MEMBERS_MAX)
        assert len(roster) <= MEMBERS_MAX
    assert roster.find("honest") is not None


def test_a_roster_full_of_live_servers_takes_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MEMBERS_MAX", 20)
    roster = Roster()
    for number in range(20):
        send(roster, f"s{number}", 0, KNOWN_BEATS)
    assert not send(roster, "new", SILENT_MS)
    assert (len(roster), roster.crowded) == (20, 1)
    assert send(roster, "s0", SILENT_MS), "its place is its own"
    assert send(roster, "new", SILENT_MS + 1), "the others are silent by now"
    assert len(roster) == 20 - 2 + 1
    assert roster.find("s0") is not None


def test_invented_servers_are_dropped_soon_and_dead_ones_late() -> None:
    roster = Roster()
    send(roster, "dead", 0, KNOWN_BEATS)
    send(roster, "ghost", 0, KNOWN_BEATS - 1)
    roster.forget(UNKNOWN_DROPPED_MS)
    assert len(roster) == 2
    roster.forget(UNKNOWN_DROPPED_MS + 1)
    assert [one.incarnation.uuid for one in roster.members()] == ["dead"]
    roster.forget(DROPPED_MS)
    assert len(roster) == 1
    roster.forget(DROPPED_MS + 1)
    assert len(roster) == 0
