"""Lost answers, lost sessions, and random orders with faults: every write is legal, and the server drains."""

from __future__ import annotations

import random

import pytest

from regions.messages import OpenOrder, OrderOutcome
from regions.records.model import Incarnation, RegionState
from regions.transitions.states import Actor, Cause, is_legal
from regionserver.replica import machine as replicas_module
from regionserver.replica.effects import (
    CloseRegion,
    Effect,
    OpenRegion,
    ReadBack,
    ReadHolder,
    Stop,
    WriteStep,
)
from regionserver.replica.states import Phase
from tests.unit.regionserver.replica.support import OTHER, Run, bring_to, finish_jobs, offline


@pytest.mark.parametrize("lost", range(4))
def test_a_lost_answer_never_changes_the_end(lost: int) -> None:
    """Whichever step's answer is lost with the connection, the replica continues from its state."""
    run = Run()
    run.opening()
    turn = 0
    while run.phase() is not Phase.OPEN or turn == 2:
        if run.phase() is Phase.OPEN:
            run.master_deletes()
            run.close()
        step = run.step(lose_answer=turn == lost)
        if turn == lost:
            if step.cause is Cause.OPEN_DONE:
                run.master_deletes()  # the master was faster than our next read
            run.read()
        turn += 1
        if run.phase() is Phase.OPENING:
            run.opened()
        elif run.phase() is Phase.CLOSING:
            run.closed()
        elif run.phase() is None:
            break
    run.pull()
    assert [result.outcome for result in run.decided] == [OrderOutcome.DONE] * len(run.decided)


class TestSession:
    """A lost session: close everything, write nothing."""

    def test_from_every_phase_everything_is_closed_and_nothing_written(self) -> None:
        """One replica per phase; afterwards the server is empty and may join again."""
        for target in Phase:
            run = bring_to(target)
            run.effects.clear()
            run.decided.clear()
            run.replicas.session_lost(run.now)
            run.pull()
            for effect in list(run.effects):
                assert not isinstance(effect, WriteStep | ReadBack), f"{target}: wrote {effect}"
            finish_jobs(run)
            assert len(run.replicas) == 0, target
            run.replicas.rejoined(Incarnation("me", 8))
            assert run.opening().outcome is OrderOutcome.REFUSED, "an order for the former incarnation"

    def test_answers_of_the_old_session_are_ignored(self) -> None:
        """A late answer must not change anything."""
        run = Run()
        run.opening()
        step = run.next(WriteStep)
        run.replicas.session_lost(run.now)
        run.replicas.step_done(step.key, step.number, 3, -1, run.now)
        run.pull()
        assert run.idle()

    def test_a_region_that_cannot_be_closed_ends_the_process(self) -> None:
        """The region belongs to another server now, and only the end of the process releases its files."""
        run = Run().until_open()
        run.replicas.session_lost(run.now)
        for _ in range(replicas_module.DROPS_MAX):
            job = run.next(CloseRegion)
            run.replicas.close_failed(job.key, job.number, "hangs", run.now)
        assert "hangs" in run.next(Stop).reason


@pytest.mark.parametrize("seed", range(60))
def test_any_order_of_orders_and_accidents_keeps_the_rules(seed: int) -> None:
    """Random orders, lost answers, rejections and lost sessions: every write is legal, and the server becomes empty."""
    rng = random.Random(seed)
    run = Run(version=0)
    for turn in range(200):
        run.pull()
        act = rng.random()
        if act < 0.1 and (run.store.record is None or rng.random() < 0.3):
            version = 0 if run.store.record is None else run.store.version + 1
            run.store.record, run.store.version = offline(attempt=turn), version
        elif act < 0.2 and run.store.record is not None and run.store.record.state is RegionState.OPENED:
            run.store.record = None
        elif act < 0.35:
            record = run.store.record
            if record is not None and record.state is RegionState.OFFLINE:
                run.replicas.order_open(OpenOrder(record, run.store.version, run.store.region, 5), 4, run.now)
        elif act < 0.45:
            run.close()
        elif act < 0.46:
            run.replicas.session_lost(run.now)
        elif run.effects:
            _answer(run, run.effects.pop(rng.randrange(len(run.effects))), rng)
        run.now += 1
    run.replicas.session_lost(run.now)
    run.pull()
    for _ in range(50):
        for effect in run.effects[:]:
            run.effects.remove(effect)
            _answer(run, effect, None)
        run.pull()
    assert len(run.replicas) == 0


def _answer(run: Run, effect: Effect, rng: random.Random | None) -> None:
    """Answer one effect; with `rng` sometimes with a fault."""
    chance = 1.0 if rng is None else rng.random()
    if isinstance(effect, WriteStep):
        assert is_legal(Actor.SERVER, effect.before, effect.record.state, effect.cause)
        taken = chance > 0.1 and run.store.take(effect)
        if chance < 0.25 or not taken:
            run.replicas.step_failed(effect.key, effect.number, "lost", not taken)
        else:
            run.replicas.step_done(effect.key, effect.number, run.store.version, run.store.region_version, run.now)
    elif isinstance(effect, ReadBack):
        store = run.store
        version = -1 if store.record is None else store.version
        run.replicas.read_back(
            effect.key, effect.number, store.record, version, store.region, store.region_version, run.now
        )
    elif isinstance(effect, OpenRegion):
        if chance < 0.15:
            run.replicas.open_failed(effect.key, effect.number, "no", run.now)
        elif chance < 0.25:
            run.replicas.owner_held(effect.key, effect.number, OTHER, run.now)
        else:
            run.replicas.opened(effect.key, effect.number, run.now)
    elif isinstance(effect, CloseRegion):
        if chance < 0.1:
            run.replicas.close_failed(effect.key, effect.number, "no", run.now)
        else:
            run.replicas.closed(effect.key, effect.number, run.now)
    elif isinstance(effect, ReadHolder):
        run.replicas.holder_seen(effect.key, effect.number, effect.holder, chance < 0.5, run.now)
    else:
        assert isinstance(effect, Stop)
