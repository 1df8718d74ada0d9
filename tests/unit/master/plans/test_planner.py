"""Plans by a process and their fallbacks; the snapshot they are made from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import ensureDeferred, maybeDeferred, succeed
from twisted.internet.error import ProcessDone, ProcessTerminated
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from master.phases import BulkPlan, Phases
from master.plans import planner as planning
from master.plans.planner import FinishedPlan, PlanFailed, PlanJob, Planner, _greedy, _read_checked, snapshot_of
from regions.balance.sizes import RegionSizes
from regions.cluster.entities import Server
from regions.cluster.state import ClusterState
from regions.messages.heartbeat import Measure
from regions.plan import Params, Snapshot, choice, plan
from regions.plan.artifact.files import write_plan
from regions.records.model import PlanRecord, PlanState, RegionRecord, ReplicaLocation, ServerRecord, TableRecord


def world(replication: int = 1) -> ClusterState:
    """Return four regions and two servers; r0 was on b."""
    made = ClusterState()
    for uuid in ("a", "b"):
        made.servers[uuid] = Server(ServerRecord(uuid, uuid, 1, 1), False)
    made.put_table(TableRecord("t", "orders", replication=replication), 0)
    for number in range(4):
        places = (ReplicaLocation(0, "b"),) if number == 0 else ()
        made.put_region(RegionRecord("t", f"r{number}", size_bytes=10, replicas=places), 0)
    return made


def snapshot() -> Snapshot:
    one = world()
    return snapshot_of(one, one.replicas.values())


def test_the_snapshot_has_the_former_places() -> None:
    taken = snapshot()
    assert taken.regions.region_id.tolist() == ["r0", "r1", "r2", "r3"]
    assert taken.last.server_id.tolist() == ["b"]
    assert taken.servers.server_id.tolist() == ["a", "b"]


def test_the_snapshot_has_measured_sizes() -> None:
    """Sizes in the records are estimates."""
    one = world()
    taken = snapshot_of(one, one.replicas.values(), RegionSizes({f"r{n}-0": Measure(n, 100 * n) for n in range(4)}))
    assert taken.regions.size_bytes.tolist() == [0, 100, 200, 300]
    assert snapshot_of(one, one.replicas.values()).regions.size_bytes.tolist() == [10] * 4


def test_the_snapshot_leaves_out_regions_with_an_open_replica() -> None:
    one = world(replication=2)
    wanted = [replica for key, replica in one.replicas.items() if key != "r2-1"]
    assert snapshot_of(one, wanted).regions.region_id.tolist() == ["r0", "r1", "r3"]


def test_greedy_keeps_places_and_balances() -> None:
    made = _greedy(snapshot(), Params(), 10)
    assert made.engine == "greedy"
    assert made.placements["r0-0"] == "b"
    assert sorted(made.placements.values()) == ["a", "a", "b", "b"]


def test_files_of_another_epoch_are_rejected(tmp_path: Path) -> None:
    """They are a late result of a former master's job."""
    params = Params(snapshot_id="p1", master_epoch=3)
    made = plan(snapshot(), params)
    tmp_path.joinpath("out").mkdir()
    write_plan(tmp_path / "out", made, plan_id="p1", params=params, seconds={})
    assert _read_checked(tmp_path / "out", snapshot(), params, "spark").digest == made.digest
    with pytest.raises(PlanFailed, match="epoch 3"):
        _read_checked(tmp_path / "out", snapshot(), Params(snapshot_id="p1", master_epoch=4), "spark")


def test_the_engine_depends_on_size_and_installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def planner(engine: str, spark_min: int = 0) -> Planner:
        return Planner(None, tmp_path, engine=engine, deadline_s=120, spark_master="local", spark_min=spark_min)

    for module in (planning, choice):
        monkeypatch.setattr(module, "missing", lambda _: "")
    assert planner("auto", 100).engine_for(99) == ("sharded", ""), "the plan of Spark, without a JVM"
    assert planner("auto", 100).engine_for(100) == ("spark", "")
    assert planner("auto").engine_for(choice.AT_ONCE_MAX) == ("greedy", "")
    assert planner("auto").engine_for(choice.AT_ONCE_MAX + 1) == ("flow", "")
    assert planner("greedy").engine_for(1_000_000) == ("greedy", "")
    assert planner("flow").engine_for(1) == ("flow", "")
    assert planner("spark").engine_for(1) == ("spark", "")
    monkeypatch.setattr(planning, "missing", lambda _: "java is not installed")
    assert planner("auto", 100).engine_for(100) == ("sharded", "java is not installed")
    monkeypatch.setattr(choice.importlib.util, "find_spec", lambda _: None)
    assert planner("auto", 100).engine_for(100) == ("greedy", "java is not installed")
    assert planner("auto", 100).engine_for(99) == ("greedy", ""), "no OR-tools"


@pytest.mark.parametrize(
    ("failing", "engine", "note"),
    [
        (("spark",), "sharded", "spark: no executor"),
        (("spark", "sharded"), "greedy", "spark: no executor; sharded: no executor"),
        (("flow",), "greedy", "flow: no executor"),
    ],
)
def test_the_fallback_of_spark_has_the_same_bytes(
    failing: tuple[str, ...], engine: str, note: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N9: greedy's plan would be another one. The plan's record names the engine and the reason."""
    jobs: list[str] = []

    async def by_job(_self: Planner, name: str, _id: str, taken: Snapshot, params: Params, *_: object) -> FinishedPlan:
        jobs.append(name)
        if name in failing:
            raise PlanFailed("no executor")
        made = plan(taken, params, engine=name)
        return FinishedPlan({}, name, made.digest)

    monkeypatch.setattr(Planner, "_by_job", by_job)
    monkeypatch.setattr(planning, "deferToThread", lambda work, *words: succeed(work(*words)))
    planner = Planner(Clock(), tmp_path, engine="spark", deadline_s=120, spark_master="local")
    found: list[FinishedPlan] = []
    making = ensureDeferred(planner.make("p", 3, snapshot(), failing[0], lambda _: None))
    making.addCallback(found.append)
    [made] = found
    assert (made.engine, made.note) == (engine, note)
    params = Params(snapshot_id="p", master_epoch=3)
    assert made.digest == plan(snapshot(), params, engine=engine).digest
    assert jobs == list(dict.fromkeys((*failing, *(() if engine == "greedy" else (engine,)))))


@pytest.mark.parametrize(("after_s", "engine"), [(30.0, "sharded"), (119.0, "greedy"), (120.0, "greedy")])
def test_the_engines_share_one_deadline(
    after_s: float, engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start does not wait twice: after a job that used up the deadline, no other job is started."""
    clock = Clock()
    untils: list[float] = []

    async def by_job(
        _self: Planner, name: str, _id: str, taken: Snapshot, params: Params, _: object, until: float
    ) -> FinishedPlan:
        untils.append(until)
        if name == "spark":
            clock.advance(after_s)
            raise PlanFailed("too late")
        return FinishedPlan({}, name, plan(taken, params, engine=name).digest)

    budgets: list[float] = []

    def greedy(taken: Snapshot, params: Params, left_s: float) -> FinishedPlan:
        budgets.append(left_s)
        return _greedy(taken, params, left_s)

    monkeypatch.setattr(Planner, "_by_job", by_job)
    monkeypatch.setattr(planning, "_greedy", greedy)
    monkeypatch.setattr(planning, "deferToThread", lambda work, *words: succeed(work(*words)))
    planner = Planner(clock, tmp_path, engine="spark", deadline_s=120, spark_master="local")
    found: list[FinishedPlan] = []
    ensureDeferred(planner.make("p", 3, snapshot(), "spark", lambda _: None)).addCallback(found.append)
    [made] = found
    assert made.engine == engine
    assert set(untils) == {120.0}, "each job ends at the same time"
    assert budgets == ([] if engine == "sharded" else [planning.GREEDY_MIN_S])
    assert ("sharded: not started" in made.note) == (engine == "greedy")


@pytest.mark.parametrize("engine", ["greedy", "flow"])
def test_a_masters_own_plan_follows_the_blocks(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FW-05: r1 and r2 have their bytes on host b, r0 and r3 on a; without the blocks r0 stays on b."""
    rows = ["region_id,host,bytes", "r0,a,5000000000", "r1,b,5000000000", "r2,b,5000000000", "r3,a,5000000000"]
    (tmp_path / "blocks.csv").write_text("\n".join([*rows, "r9,b,7", "r1,elsewhere,7"]))

    async def by_job(_self: Planner, name: str, _id: str, taken: Snapshot, params: Params, *_: object) -> FinishedPlan:
        made = plan(taken, params, engine=name)
        return FinishedPlan(planning._placements(made.rows), name, made.digest)

    monkeypatch.setattr(Planner, "_by_job", by_job)
    monkeypatch.setattr(planning, "deferToThread", lambda work, *words: succeed(work(*words)))
    planner = Planner(Clock(), tmp_path, engine=engine, deadline_s=120, spark_master="local", blocks=tmp_path)
    found: list[FinishedPlan] = []
    one = world()
    taken = snapshot_of(one, one.replicas.values(), RegionSizes({f"r{n}-0": Measure(1, 5 * 10**9) for n in range(4)}))
    ensureDeferred(planner.make("p", 3, taken, engine, lambda _: None)).addCallback(found.append)
    [made] = found
    assert made.placements == {"r0-0": "a", "r1-0": "b", "r2-0": "b", "r3-0": "a"}
    assert (made.engine, made.note) == (engine, "")


@pytest.mark.parametrize("content", [None, "region_id,host\nr0,a\n", "region_id,host,bytes\nr0,a,many\n"])
def test_blocks_that_cannot_be_read_do_not_hold_up_a_start(
    content: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if content is not None:
        (tmp_path / "blocks.csv").write_text(content)
    monkeypatch.setattr(planning, "deferToThread", succeed_or_fail)
    planner = Planner(Clock(), tmp_path, engine="greedy", deadline_s=120, spark_master="local", blocks=tmp_path)
    found: list[FinishedPlan] = []
    ensureDeferred(planner.make("p", 3, snapshot(), "greedy", lambda _: None)).addCallback(found.append)
    [made] = found
    assert made.note.startswith("locality ignored: ")
    assert made.placements["r0-0"] == "b"


def succeed_or_fail(work: Any, *words: Any) -> Any:
    """Perform `work` at once."""
    return maybeDeferred(work, *words)


class Transport:
    """Records signals."""

    def __init__(self) -> None:
        self.signals: list[str] = []

    def signalProcess(self, name: str) -> None:
        self.signals.append(name)


def ended(job: PlanJob, reason: Exception) -> list[Any]:
    results: list[Any] = []
    job.ended.addBoth(results.append)
    job.processEnded(Failure(reason))
    return results


def test_a_job_reports_its_stages_whatever_the_pieces() -> None:
    stages: list[str] = []
    job = PlanJob(stages.append)
    lines = b'{"stage": "session", "done": 1, "total": 7}\nnoise\n{"stage": "read", "done": 2, "total": 7}\n'
    for at in range(0, len(lines), 5):
        job.outReceived(lines[at : at + 5])
    assert stages == ["session 1/7", "read 2/7"]
    assert ended(job, ProcessDone(0)) == [None]


def test_a_failed_job_reports_the_reason() -> None:
    job = PlanJob(lambda _: None)
    job.outReceived(b'{"stage": "failed", "error": "NoServers", "message": "none may take regions"}\n')
    [failure] = ended(job, ProcessTerminated(4))
    assert "none may take regions" in str(failure.value)
    silent = PlanJob(lambda _: None)
    silent.errReceived(b"Exception in thread main\n")
    [failure] = ended(silent, ProcessTerminated(6))
    assert "status 6" in str(failure.value)


def test_a_late_job_is_killed() -> None:
    job = PlanJob(lambda _: None)
    transport: Any = Transport()
    job.transport = transport
    job.kill("no plan within 1 s")
    assert transport.signals == ["KILL"]
    [failure] = ended(job, ProcessTerminated(None, 9))
    assert "no plan within 1 s" in str(failure.value)


def test_phases_follow_one_another() -> None:
    now = [0.0]
    phases = Phases(lambda: now[0])
    phases.begin("load")
    now[0] = 2.0
    phases.begin("plan")
    now[0] = 3.0
    assert [(one.name, one.seconds, one.done) for one in phases.report()] == [("load", 2.0, True), ("plan", 1.0, False)]
    phases.end()
    phases.restart_from("plan")
    phases.begin("plan")
    assert [one.name for one in phases.report()] == ["load", "plan"]


def test_bulk_plan_reports_its_progress() -> None:
    now = [10.0]
    bulk = BulkPlan(PlanRecord("p1", 1, engine="greedy", regions=2), ["r0-0", "r1-0"], lambda: now[0])
    bulk.assigned = 1
    now[0] = 12.5
    assert (bulk.report().assigned, bulk.report().seconds, bulk.is_running) == (1, 2.5, True)
    bulk.change(state=PlanState.DONE)
    now[0] = 99.0
    assert (bulk.report().seconds, bulk.report().state) == (2.5, "DONE")
