"""A planning job that ends at any stage, is late, or leaves no valid plan: the greedy engine plans, and the reason is
recorded."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred, ensureDeferred, maybeDeferred
from twisted.internet.error import ProcessDone, ProcessTerminated
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from master.plans import planner as planning
from master.plans.planner import FinishedPlan, PlanJob, Planner
from regions.plan import Params, Plan, plan, plan_digest
from regions.plan.artifact.files import MANIFEST, write_plan
from regions.plan.spark_job import STAGES
from tests.unit.master.plans.test_planner import snapshot

PLAN = "000007-abc"
EPOCH = 7
DEADLINE_S = 60.0

pytest.importorskip("pyarrow")


class Machine(Clock):
    """A reactor whose only process the test simulates."""

    def __init__(self) -> None:
        super().__init__()
        self.job: PlanJob | None = None
        self.output = Path()
        self.signals: list[str] = []

    def spawnProcess(self, job: PlanJob, _program: str, words: list[str], **_: Any) -> None:
        job.transport = self  # type: ignore[assignment]
        self.job, self.output = job, Path(words[words.index("--output") + 1])

    def signalProcess(self, name: str) -> None:
        self.signals.append(name)
        self.end(ProcessTerminated(None, 9))

    def say(self, stages: int) -> None:
        """Report that the job has finished that many stages."""
        assert self.job is not None
        for done, stage in enumerate(STAGES[:stages], 1):
            line = json.dumps({"stage": stage, "done": done, "total": len(STAGES)})
            self.job.outReceived(line.encode() + b"\n")

    def end(self, reason: Exception) -> None:
        """End the job's process."""
        assert self.job is not None
        self.job.processEnded(Failure(reason))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Return a machine that runs threaded work at once, and has no engine that takes over but greedy."""
    monkeypatch.setattr(planning, "deferToThread", maybeDeferred)
    monkeypatch.setattr(planning, "fallbacks", lambda *_: ("greedy",))
    return Machine()


def begun(machine: Machine, folder: Path) -> list[Any]:
    """Begin a plan; its result is appended to the list."""
    planner = Planner(machine, folder, engine="spark", deadline_s=DEADLINE_S, spark_master="local", spark_min=1)
    results: list[Any] = []
    ensureDeferred(planner.make(PLAN, EPOCH, snapshot(), "spark", lambda _: None)).addBoth(results.append)
    assert machine.job is not None
    assert not results
    return results


def left(output: Path, *, plan_id: str = PLAN, epoch: int = EPOCH) -> None:
    """Write a complete plan of the job."""
    params = Params(snapshot_id=plan_id, master_epoch=epoch)
    write_plan(output, plan(snapshot(), params), plan_id=plan_id, params=params, seconds={})


def is_greedy(results: list[Any], why: str) -> None:
    """Check that every replica has a place and that the note says why the plan is not Spark's."""
    (made,) = results
    assert isinstance(made, FinishedPlan), made
    assert made.engine == "greedy"
    assert made.note.startswith("spark: ")
    assert why in made.note, made.note
    assert sorted(made.placements) == [f"r{number}-0" for number in range(4)]


def test_a_job_that_succeeds_has_made_the_plan(machine: Machine, tmp_path: Path) -> None:
    """The reference for the other tests."""
    results = begun(machine, tmp_path)
    left(machine.output)
    machine.say(len(STAGES))
    machine.end(ProcessDone(0))
    assert (results[0].engine, results[0].note) == ("spark", "")


def test_the_exact_flow_runs_as_a_job_as_well(machine: Machine, tmp_path: Path) -> None:
    """The job needs neither the reactor nor Spark; if it fails, the note names it."""
    planner = Planner(machine, tmp_path, engine="flow", deadline_s=DEADLINE_S, spark_master="local")
    for ending, said in ((ProcessDone(0), ("flow", "")), (ProcessTerminated(3), ("greedy", "flow: "))):
        results: list[Any] = []
        ensureDeferred(planner.make(PLAN, EPOCH, snapshot(), "flow", lambda _: None)).addBoth(results.append)
        left(machine.output)
        machine.end(ending)
        assert (results[0].engine, results[0].note[:6]) == said


@pytest.mark.parametrize("stages", range(len(STAGES) + 1))
def test_a_job_killed_at_any_stage_is_replaced_by_greedy(machine: Machine, tmp_path: Path, stages: int) -> None:
    """Even with a complete plan on the disk: a killed job has not confirmed the plan."""
    results = begun(machine, tmp_path)
    machine.say(stages)
    if stages >= len(STAGES) - 1:
        left(machine.output)
    if stages == len(STAGES) - 1:
        (machine.output / MANIFEST).rename(machine.output / f".{MANIFEST}.new")
    machine.end(ProcessTerminated(None, 9))
    is_greedy(results, "signal 9")


@pytest.mark.parametrize("stages", range(len(STAGES) + 1))
def test_a_late_job_is_killed_at_the_deadline_whatever_its_stage(machine: Machine, tmp_path: Path, stages: int) -> None:
    """The note names the stage that it had reached."""
    results = begun(machine, tmp_path)
    machine.say(stages)
    machine.advance(DEADLINE_S - 0.1)
    assert not results
    machine.advance(0.2)
    assert machine.signals == ["KILL"]
    heard = STAGES[stages - 1] if stages else "none"
    is_greedy(results, f"no plan within 60 s (last progress of the job: {heard})")


@pytest.mark.parametrize("slow", ["_prepare", "_read_checked"])
def test_the_deadline_includes_reading_and_writing_files(
    machine: Machine, tmp_path: Path, slow: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk hangs while the input is written or the plan is read: the start of a cluster continues without the
    plan."""
    waiting: list[Deferred[Any]] = []

    def thread(work: Callable[..., Any], *arguments: Any) -> Deferred[Any]:
        if work.__name__ == slow:
            waiting.append(Deferred())
            return waiting[-1]
        return maybeDeferred(work, *arguments)

    monkeypatch.setattr(planning, "deferToThread", thread)
    planner = Planner(machine, tmp_path, engine="spark", deadline_s=DEADLINE_S, spark_master="local", spark_min=1)
    results: list[Any] = []
    ensureDeferred(planner.make(PLAN, EPOCH, snapshot(), "spark", lambda _: None)).addBoth(results.append)
    if slow == "_read_checked":
        machine.advance(DEADLINE_S / 2)
        left(machine.output)
        machine.end(ProcessDone(0))
        machine.advance(DEADLINE_S / 2 + 1)
    else:
        machine.advance(DEADLINE_S + 1)
        assert machine.job is None, "no job is started for nobody"
    assert len(waiting) == 1
    is_greedy(results, "no plan within 60 s")


@pytest.mark.parametrize("has_begun", [True, False])
def test_an_abandoned_plan_starts_no_job(
    machine: Machine, tmp_path: Path, has_begun: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tenure ends while the job runs, or while its input is being written."""
    writing: Deferred[Any] = Deferred()
    if not has_begun:
        monkeypatch.setattr(
            planning, "deferToThread", lambda work, *_: writing if work.__name__ == "_prepare" else None
        )
    planner = Planner(machine, tmp_path, engine="spark", deadline_s=DEADLINE_S, spark_master="local", spark_min=1)
    results: list[Any] = []
    ensureDeferred(planner.make(PLAN, EPOCH, snapshot(), "spark", lambda _: None)).addErrback(results.append)
    planner.cancel()
    if has_begun:
        assert machine.signals == ["KILL"]
    else:
        monkeypatch.setattr(planning, "deferToThread", maybeDeferred)
        writing.callback(None)
        assert machine.job is None
    assert results == []


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(bytes(data))


def _change(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def _other_rows(output: Path) -> None:
    """Return a complete plan with this snapshot's name, for other regions."""
    for path in output.iterdir():
        path.unlink()
    params = Params(snapshot_id=PLAN, master_epoch=EPOCH)
    made = plan(snapshot(), params)
    made.rows.server_id[:] = "a"
    write_plan(output, Plan(made.rows, plan_digest(made.rows), made.stats), plan_id=PLAN, params=params, seconds={})


SPOILED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no manifest": (lambda out: (out / MANIFEST).unlink(), "holds no plan"),
    "half a manifest": (lambda out: _cut(out / MANIFEST), MANIFEST),
    "an empty manifest": (lambda out: (out / MANIFEST).write_bytes(b""), MANIFEST),
    "no part": (lambda out: (out / "part-00000.parquet").unlink(), "part-00000.parquet"),
    "half a part": (lambda out: _cut(out / "part-00000.parquet"), "its SHA-256 differs"),
    "a flipped bit": (lambda out: _flip(out / "part-00000.parquet"), "its SHA-256 differs"),
    "another digest": (lambda out: _change(out / MANIFEST, digest="0" * 64), "the rows do not match the manifest"),
    "fewer rows": (lambda out: _change(out / MANIFEST, rows=3), "the rows do not match the manifest"),
    "a former epoch": (lambda out: _change(out / MANIFEST, master_epoch=EPOCH - 1), "the job's plan is of epoch 6"),
    "another plan": (lambda out: _change(out / MANIFEST, snapshot_id="000006-xyz"), "snapshot '000006-xyz'"),
    "broken rules": (_other_rows, "the plan breaks"),
}


@pytest.mark.parametrize("how", SPOILED)
def test_a_corrupt_stale_or_wrong_plan_is_rejected(machine: Machine, tmp_path: Path, how: str) -> None:
    """The job reports success, and the files are corrupt, stale or wrong."""
    spoil, why = SPOILED[how]
    results = begun(machine, tmp_path)
    left(machine.output)
    spoil(machine.output)
    machine.say(len(STAGES))
    machine.end(ProcessDone(0))
    is_greedy(results, why)
