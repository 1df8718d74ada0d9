"""The recorder of calls behind the walks of docs/architecture.md."""

from __future__ import annotations

import msgspec

from regions.records import znodes
from regions.records.model import EpochRecord
from tests.support.docs.calls import Recorder, Walk, as_markdown
from tests.support.interpreted import needs_interpreted


@needs_interpreted
def test_calls_of_the_product_are_recorded_in_order() -> None:
    recorder = Recorder(("regions",), lambda: "m1")
    layout = znodes.Layout()
    recorder.start()
    layout.server("before")
    recorder.is_on = True
    layout.server("uuid")
    znodes.encode(EpochRecord("uuid", 1, 2))
    msgspec.json.encode({})
    recorder.stop()
    layout.server("after")
    assert recorder.modules("m") == ["regions.records.znodes"] * 2
    assert recorder.modules("s") == []


@needs_interpreted
def test_what_watchers_call_does_not_count() -> None:
    from simulation.checks.observer import Observer
    from simulation.engine.chance import SeededRandom
    from simulation.engine.timeline import Timeline

    observer = Observer(Timeline(SeededRandom(1)), znodes.Layout())
    recorder = Recorder(("regions",))
    recorder.start()
    recorder.is_on = True
    observer.check_all()
    znodes.shard("region")
    recorder.stop()
    assert recorder.modules() == ["regions.records.znodes"]


def test_changes_of_module_are_counted() -> None:
    walk = Walk("a walk", ("then", "review"), ["a", "a", "b", "a", "c"])
    assert walk.changes() == 3
    assert "| a walk | 5, 3, 3 | then | review |" in as_markdown([walk])
    assert "a 3 → b → c" in as_markdown([walk])
