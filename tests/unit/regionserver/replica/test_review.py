"""A master orders a check whether a replica belongs to this server, and the store decides. Also tests the reports
meanwhile."""

from __future__ import annotations

from collections import Counter

import pytest

from regions.messages import OrderOutcome
from regions.records.model import RegionRecord, RegionState, ReplicaLocation, TabletState, TransitionRecord
from regionserver.replica.effects import CloseRegion, ReadOwner
from regionserver.replica.readback import is_disowned
from regionserver.replica.states import Phase
from tests.unit.regionserver.replica.support import KEY, ME, OTHER, Run, offline

HERE = RegionRecord("t", "r1", replicas=(ReplicaLocation(0, "me", 7, 1000),))
THERE = RegionRecord("t", "r1", replicas=(ReplicaLocation(0, "other", 3, 1000),))
NOWHERE = RegionRecord("t", "r1")
REPLACED = RegionRecord("t", "r1", state=TabletState.REPLACED, replicas=HERE.replicas)
DELETED = RegionRecord("t", "r1", state=TabletState.DELETED)
CLOSING = TransitionRecord("r1", "t", 0, RegionState.CLOSING, source=ME)


@pytest.mark.parametrize(
    ("found", "region", "disowned"),
    [
        (None, HERE, False),
        (None, THERE, True),
        (None, NOWHERE, True),
        (None, REPLACED, True),
        (None, DELETED, True),
        # FN-04: the store does not know it. It may be another cluster's, or the catalog was lost.
        (None, None, False),
        (offline(OTHER), None, False),
        # A transition that names this server decides, whatever the record says.
        (CLOSING, THERE, False),
        (offline(ME), DELETED, False),
        (offline(OTHER), NOWHERE, True),
    ],
)
def test_the_store_decides_which_server_has_the_replica(
    found: TransitionRecord | None, region: RegionRecord | None, disowned: bool
) -> None:
    """FN-02, FN-03, FN-04: the cases of a replica that should perhaps be deleted."""
    assert is_disowned(ME, 0, found, region) is disowned


def test_a_replica_of_another_server_is_dropped_without_a_write() -> None:
    """DROPPING, as after a lost session: the handler closes it, no znode is written, and it is reported gone."""
    run = Run().until_open().master_deletes()
    run.replicas.take_changed()
    assert run.replicas.order_review(KEY).outcome is OrderOutcome.STARTED
    assert run.replicas.order_review(KEY).outcome is OrderOutcome.STARTED
    ask = run.next(ReadOwner)
    assert run.idle(), "asked twice, read once"
    run.replicas.reviewed(KEY, ask.number, None, THERE, run.now)
    assert run.phase() is Phase.DROPPING
    run.closed()
    assert (run.phase(), run.idle()) == (None, True)
    assert run.replicas.take_changed() == [KEY]
    assert run.replicas.report(KEY) is None
    assert run.replicas.order_review(KEY).outcome is OrderOutcome.DONE


def test_a_replica_of_this_server_stays_open() -> None:
    """The master's state was outdated, or it is not active any more."""
    run = Run().until_open().master_deletes()
    run.replicas.order_review(KEY)
    run.replicas.reviewed(KEY, run.next(ReadOwner).number, None, HERE, run.now)
    assert run.phase() is Phase.OPEN


def test_a_late_reply_changes_nothing() -> None:
    """The replica has begun to close meanwhile, or another answer is awaited."""
    run = Run().until_open().master_deletes()
    run.replicas.order_review(KEY)
    ask = run.next(ReadOwner)
    run.replicas.reviewed(KEY, ask.number + 1, None, THERE, run.now)
    assert run.phase() is Phase.OPEN
    run.close()
    run.replicas.reviewed(KEY, ask.number, None, THERE, run.now)
    assert run.phase() is Phase.MARKING


def test_a_lost_session_overtakes_the_review() -> None:
    """It is closed once."""
    run = Run().until_open().master_deletes()
    run.replicas.order_review(KEY)
    ask = run.next(ReadOwner)
    run.replicas.session_lost(run.now)
    run.replicas.reviewed(KEY, ask.number, None, THERE, run.now)
    job = run.next(CloseRegion)
    assert run.idle()
    run.replicas.closed(job.key, job.number, run.now)
    assert len(run.replicas) == 0


def test_every_change_is_reported_and_counted() -> None:
    """HB-03: added, opening, closing, removed; the figures of a heartbeat need no walk over all replicas."""
    run = Run()
    run.opening()
    told = [run.replicas.report(KEY)]
    run.step()
    run.opened()
    run.step()
    told.append(run.replicas.report(KEY))
    assert run.replicas.take_changed() == [KEY]
    assert run.replicas.take_changed() == []
    run.master_deletes().close()
    told.append(run.replicas.report(KEY))
    assert [None if one is None else one.state for one in told] == ["OPENING", "OPEN", "CLOSING"]
    assert +Counter(run.replicas.phases()) == Counter({Phase.MARKING: 1})
