"""Each broken invariant of the replicas is noticed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from regions.messages import OrderOutcome, OrderResult
from regions.records.model import RegionRecord
from regionserver.replica import finished_orders
from regionserver.replica.effects import OrderFinished
from regionserver.replica.finished_orders import FinishedOrder
from regionserver.replica.invariants import INVARIANTS
from regionserver.replica.local_replica import LocalReplica, WaitingOrder
from regionserver.replica.states import Phase
from tests.unit.regionserver.replica.support import CLOSE, KEY, OTHER, Run, bring_to

Break = Callable[[Run, LocalReplica], object]


def _without_phase(_run: Run, one: LocalReplica) -> None:
    one.phase = None


def _counted_twice(run: Run, _one: LocalReplica) -> None:
    run.replicas._counts[Phase.OPEN] += 1


def _under_another_key(run: Run, one: LocalReplica) -> None:
    run.replicas._replicas["r2", 0] = run.replicas._replicas.pop(one.key)


def _another_region(_run: Run, one: LocalReplica) -> None:
    one.region = RegionRecord("t", "r2")


def _not_open(_run: Run, one: LocalReplica) -> None:
    one.is_open = False


def _still_open(_run: Run, one: LocalReplica) -> None:
    one.is_open = True


def _no_job(_run: Run, one: LocalReplica) -> None:
    one.job_number = 0


def _a_job(run: Run, one: LocalReplica) -> None:
    one.job_number = run.replicas._number()


def _no_step(_run: Run, one: LocalReplica) -> None:
    one.step = None


def _awaits_nothing(_run: Run, one: LocalReplica) -> None:
    one.step_number = 0


def _awaits_no_step(run: Run, one: LocalReplica) -> None:
    one.step_number = run.replicas._number()


def _wrong_step(_run: Run, one: LocalReplica) -> None:
    one.phase = Phase.RELEASING


def _shared_number(_run: Run, one: LocalReplica) -> None:
    one.review_number = one.ticket = one.step_number


def _unknown_number(run: Run, one: LocalReplica) -> None:
    one.step_number = run.replicas._last_number + 1


def _decided_too_early(run: Run, one: LocalReplica) -> None:
    run.replicas.effects.append(OrderFinished(one.ticket, OrderResult(*KEY, OrderOutcome.DONE)))


def _no_ticket(_run: Run, one: LocalReplica) -> None:
    one.ticket = 0


def _waits_for_nothing(run: Run, one: LocalReplica) -> None:
    one.waiting = WaitingOrder(CLOSE, 5, run.replicas._number())


def _no_transition(_run: Run, one: LocalReplica) -> None:
    one.record = None


def _anothers_transition(_run: Run, one: LocalReplica) -> None:
    assert one.record is not None
    one.record = replace(one.record, region_id="r2")


def _no_location(_run: Run, one: LocalReplica) -> None:
    one.location = None


def _location_elsewhere(_run: Run, one: LocalReplica) -> None:
    assert one.location is not None
    one.location = replace(one.location, uuid=OTHER.uuid)


def _schema_not_passed(_run: Run, one: LocalReplica) -> None:
    one.schema_version += 1


def _schema_invented(_run: Run, one: LocalReplica) -> None:
    one.schema_passed += 1


def _finished_and_here(run: Run, _one: LocalReplica) -> None:
    run.replicas._finished.keep(KEY, FinishedOrder(None, OrderResult(*KEY, OrderOutcome.DONE), None))


def _finished_under_another_key(run: Run, _one: LocalReplica) -> None:
    run.replicas._finished.kept["r3", 0] = FinishedOrder(None, OrderResult("r4", 0, OrderOutcome.DONE), None)


def _finished_half(run: Run, one: LocalReplica) -> None:
    past = FinishedOrder(None, OrderResult("r3", 0, OrderOutcome.DONE), one.failed_open(1))
    run.replicas._finished.kept["r3", 0] = past


def _too_many_finished(run: Run, _one: LocalReplica) -> None:
    for number in range(finished_orders.FINISHED_MAX + 1):
        key = "r", number
        run.replicas._finished.kept[key] = FinishedOrder(None, OrderResult(*key, OrderOutcome.DONE), None)


CASES: list[tuple[str, Phase, Break]] = [
    ("keys", Phase.OPEN, _under_another_key),
    ("keys", Phase.OPEN, _another_region),
    ("phases", Phase.OPEN, _without_phase),
    ("phases", Phase.OPEN, _counted_twice),
    ("holds", Phase.OPEN, _not_open),
    ("holds", Phase.RELEASING, _still_open),
    ("jobs", Phase.OPENING, _no_job),
    ("jobs", Phase.CLOSING, _no_job),
    ("jobs", Phase.OPEN, _a_job),
    ("steps", Phase.CLAIMING, _no_step),
    ("steps", Phase.MARKING, _awaits_nothing),
    ("steps", Phase.CLOSING, _awaits_no_step),
    ("steps", Phase.CLAIMING, _wrong_step),
    ("numbers", Phase.ANNOUNCING, _shared_number),
    ("numbers", Phase.ANNOUNCING, _unknown_number),
    ("numbers", Phase.CLOSING, _decided_too_early),
    ("orders", Phase.CLOSING, _no_ticket),
    ("orders", Phase.OPEN, _waits_for_nothing),
    ("transitions", Phase.OPENING, _no_transition),
    ("transitions", Phase.CLOSING, _anothers_transition),
    ("locations", Phase.OPEN, _no_location),
    ("locations", Phase.MARKING, _location_elsewhere),
    ("schemas", Phase.OPEN, _schema_not_passed),
    ("schemas", Phase.OPENING, _schema_invented),
    ("finished", Phase.OPEN, _finished_and_here),
    ("finished", Phase.OPEN, _finished_under_another_key),
    ("finished", Phase.OPEN, _finished_half),
    ("finished", Phase.OPEN, _too_many_finished),
]


@pytest.mark.parametrize(("name", "phase", "break_it"), CASES, ids=lambda one: getattr(one, "__name__", str(one)))
def test_a_broken_invariant_is_noticed(name: str, phase: Phase, break_it: Break) -> None:
    """The replica is valid until an invariant is broken on purpose; then the error names this invariant."""
    run = bring_to(phase)
    run.replicas.validate()
    break_it(run, run.replicas._replicas[KEY])
    with pytest.raises(AssertionError, match=f"{name}: "):
        run.replicas.validate()


def test_each_invariant_has_a_case() -> None:
    """A new invariant needs a case that breaks it."""
    assert {check.__name__ for check in INVARIANTS} == {name for name, _, _ in CASES}
