"""The history that follows from observed transition znodes."""

from __future__ import annotations

import msgspec

from coord.wire.records import EVENT_CREATED, EVENT_DATA_CHANGED, EVENT_DELETED
from regions.records.model import RegionState, TransitionRecord
from regions.transitions.observed import UNKNOWN, History, ObservedTransition, SeenVersions, actor_of, epoch_breaches
from regions.transitions.states import Actor

KEY = "r1-0"


def sight(state: str, version: int = 0, *, czxid: int = 10, mzxid: int = 0, epoch: int = 1) -> ObservedTransition:
    """Return a read of the one transition of these tests."""
    record = TransitionRecord("r1", "t1", 0, RegionState(state), epoch=epoch)
    return ObservedTransition(0, KEY, record, version, czxid, mzxid or czxid + version)


def gone(version: int = UNKNOWN) -> ObservedTransition:
    """Return the znode's end, at its last version."""
    return ObservedTransition(0, KEY, TransitionRecord("r1", "", 0, RegionState.OPENED), version, exists=False)


def steps(history: History) -> list[tuple[str, str, int]]:
    """Return changes without their records."""
    return [(change.before, change.after, change.missed) for change in history.changes]


def test_a_whole_life_seen_step_by_step_is_legal() -> None:
    """OFFLINE, OPENING, OPENED, deleted."""
    history = History()
    for one in (sight("OFFLINE"), sight("OPENING", 1), sight("OPENED", 2), gone(2)):
        history.see(one)
    assert steps(history) == [
        ("", "OFFLINE", 0),
        ("OFFLINE", "OPENING", 0),
        ("OPENING", "OPENED", 0),
        ("OPENED", "", 0),
    ]
    assert history.breaches == []
    assert history.steps_missed == 0
    assert history.in_transition == []


def test_the_same_version_twice_is_one_change() -> None:
    """Two events may lead to two reads of one version."""
    history = History()
    history.see(sight("OFFLINE"))
    assert history.see(sight("OFFLINE")) == []
    assert history.see(gone()) != []
    assert history.see(gone()) == []


def test_unseen_steps_are_counted_and_must_have_a_legal_way() -> None:
    """Two versions lead from OFFLINE to OPENED legally; one version cannot lead from OFFLINE to CLOSED."""
    history = History()
    history.see(sight("OFFLINE"))
    history.see(sight("OPENED", 2))
    assert steps(history)[1:] == [("OFFLINE", "OPENING", 0), ("OPENING", "OPENED", 0)]
    assert [change.inferred for change in history.changes] == [False, True, False]
    assert (history.breaches, history.steps_missed) == ([], 1)
    history.see(sight("CLOSED", 3))
    assert history.breaches == ["r1-0: OPENED -> CLOSED is not a legal sequence of steps"]


def test_a_znode_first_seen_at_a_later_version_counts_the_earlier_ones() -> None:
    """Version 2 of a new znode is its third write. If several paths are possible, the steps between stay unknown."""
    history = History()
    history.see(sight("OPENED", 2))
    assert steps(history) == [("", "OFFLINE", 0), ("OFFLINE", "OPENING", 0), ("OPENING", "OPENED", 0)]
    several = History()
    several.see(sight("OPENING", 2))
    assert steps(several) == [("", "OPENING", 2)]
    assert several.breaches == history.breaches == []


def test_a_life_that_nobody_could_read_is_told_from_its_events() -> None:
    """Three writes and a deletion: only opening a region takes that many. Two may be anything."""
    history = History()
    history.see(gone(2))
    assert [after for _, after, _ in steps(history)] == ["OFFLINE", "OPENING", "OPENED", ""]
    assert (history.breaches, history.steps_missed) == ([], 3)
    disabled = History()
    disabled.see(gone(1))
    assert disabled.breaches == []
    assert sum(1 + missed for _, _, missed in steps(disabled)) == 3


def test_the_end_after_unseen_steps_must_have_a_legal_way_of_that_length() -> None:
    """Observed OFFLINE, then gone two writes later; or OPENED, then gone one write later."""
    history = History()
    history.see(sight("OFFLINE"))
    history.see(gone(2))
    assert [after for _, after, _ in steps(history)] == ["OFFLINE", "OPENING", "OPENED", ""]
    assert history.breaches == []
    forced = History()
    forced.see(sight("OPENED", 2))
    forced.see(gone(3))
    assert [after for _, after, _ in steps(forced)][-2:] == ["OFFLINE", ""]
    assert forced.changes[-2].inferred


def test_an_end_that_no_legal_way_leads_to_is_a_breach() -> None:
    """A region must not vanish from OPENING in one step."""
    history = History()
    history.see(sight("OPENING", 1))
    history.see(gone(1))
    assert history.breaches == ["r1-0: OPENING -> (deleted) is not a legal sequence of steps"]


def test_the_next_transition_of_a_replica_is_told_from_the_last_by_its_creation() -> None:
    """A deletion and a creation between two reads are both changes."""
    history = History()
    history.see(sight("OFFLINE", 0, czxid=10))
    history.see(sight("OPENED", 2, czxid=10))
    history.see(sight("CLOSING", 0, czxid=20))
    assert steps(history)[3:] == [("OPENED", "", 0), ("", "CLOSING", 0)]
    assert history.see(sight("OPENED", 2, czxid=10)) == []
    assert history.breaches == []


def test_a_closing_znode_is_only_created_never_set() -> None:
    """RT-26: OFFLINE -> CLOSING is not a step."""
    history = History()
    history.see(sight("OFFLINE"))
    history.see(sight("CLOSING", 1))
    assert len(history.breaches) == 1


def test_a_wipe_is_legal_only_where_it_is_expected() -> None:
    """A cluster startup may delete CLOSING, a failover must not."""
    for allowed, breaches in ((True, 0), (False, 0)):
        history = History(wipe_allowed=allowed)
        history.see(sight("CLOSING"))
        history.see(gone())
        # Otherwise steps must have been missed: CLOSING -> CLOSED -> (deleted).
        assert history.steps_missed == (0 if allowed else 1)
        assert len(history.breaches) == breaches


def test_transitions_from_before_are_no_changes() -> None:
    """They are the state at the beginning of the history."""
    history = History()
    history.begin([sight("OPENING", 1)])
    assert history.in_transition == [KEY]
    history.see(sight("OPENED", 2))
    assert steps(history) == [("OPENING", "OPENED", 0)]


def test_actor_is_known_where_only_one_may_take_the_step() -> None:
    """The table names the actor."""
    assert actor_of("OFFLINE", "OPENING") is Actor.SERVER
    assert actor_of("OPENED", "") is Actor.MASTER
    assert actor_of("OPENED", "CLOSING") is None


def test_a_deposed_masters_write_is_a_breach_and_a_servers_late_step_is_not() -> None:
    """Servers finish orders of an earlier master; a master must not write under an old epoch."""
    history = History()
    history.see(sight("OFFLINE", 0, czxid=10, mzxid=10, epoch=1))
    history.see(sight("OPENING", 1, czxid=10, mzxid=30, epoch=1))
    epochs = [(1, 5), (2, 20)]
    assert epoch_breaches(epochs, history.changes) == []
    late = History()
    late.see(sight("OFFLINE", 0, czxid=30, mzxid=30, epoch=1))
    assert epoch_breaches(epochs, late.changes) == ["r1-0: OFFLINE written under epoch 1 while 2 was in force"]


def test_epochs_must_increase_strictly() -> None:
    """The same epoch twice means two masters."""
    assert epoch_breaches([(3, 1), (3, 2)], []) == ["epoch 3 came after 3"]
    assert epoch_breaches([(3, 1), (4, 2)], []) == []


def test_records_keep_their_fields() -> None:
    """A change carries the record that was read with it."""
    history = History()
    (change,) = history.see(sight("OFFLINE", epoch=7))
    assert msgspec.structs.asdict(change.record)["epoch"] == 7


def test_versions_are_counted_by_events() -> None:
    """A read may be older or newer than the events; nothing is known of a znode whose begin was not seen."""
    seen, path = SeenVersions(), "/unassigned/07/t1.0001-0"
    created, changed, deleted = ((kind, path, 3) for kind in (EVENT_CREATED, EVENT_DATA_CHANGED, EVENT_DELETED))
    assert seen.see([created, changed, changed]) == []
    seen.read("t1.0001-0", 1)
    assert seen.see([deleted]) == [("t1.0001-0", 2)]
    assert seen.see([changed, deleted]) == [("t1.0001-0", UNKNOWN)]
    seen.read("t1.0001-0", 4)
    seen.clear()
    assert seen.see([deleted]) == [("t1.0001-0", UNKNOWN)]
