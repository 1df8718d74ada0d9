"""`rk plan` against a cluster: submitted moves, rejections and reasons. The master's half is the real one (N4)."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cli.common.asking.refusals import refusal
from cli.common.errors import CliError, ExitStatus
from cli.main import run
from cli.plan import apply, revert
from cli.tables import every_region
from coord.rpc.server import RpcError
from master.api.reads import ReadView, describe_table, server_load, summary
from regions import messages as ms
from regions.balance.sizes import RegionSize
from regions.cluster.history import StepLog
from regions.cluster.limits import AssignerConfig
from regions.records.members import Storage
from regions.records.model import PlanState
from regions.records.znodes import Layout
from tests.unit.master.plans.test_applying import LAYOUT, PLAN, Ruler, memory_store

pytest.importorskip("pyarrow")


class MemoryCluster:
    """The methods of a cluster that `rk plan` uses: a master without a network, a store without a disk."""

    local = None

    def __init__(self) -> None:
        self.store = memory_store()
        self.ruler = Ruler(self.store)
        self.layout: Layout = LAYOUT
        #: Requests whose answers are lost, by type.
        self.lost: list[type] = []
        self.asked: list[msgspec.Struct] = []

    def get(self, path: str) -> bytes | None:
        found = self.store.nodes.get(path)
        return None if found is None else found[0]

    def get_all(self, parent: str) -> dict[str, bytes]:
        return {
            path.rpartition("/")[2]: one[0] for path, one in self.store.nodes.items() if path.startswith(f"{parent}/")
        }

    def records(self, parent: str, decode: Any) -> dict[str, Any]:
        return {name: decode(data, f"{parent}/{name}") for name, data in self.get_all(parent).items()}

    def ask_master(self, message: Any, expect: type) -> Any:
        self.asked.append(message)
        try:
            answer = self._answer(message)
            if type(message) in self.lost:
                self.lost.remove(type(message))
                raise RpcError("connection_lost", "the connection broke")
        except RpcError as error:
            raise refusal(error, message) from error
        assert isinstance(answer, expect)
        return answer

    def _answer(self, message: Any) -> Any:
        world = self.ruler.assigner.world
        match message:
            case ms.GetMasterStatus():
                return ms.MasterStatus("m", "active", 4, "", "", 3, 1, 1, 6, 6, 6, 0, 0, [], None, [], 0)
            case ms.ListServers():
                return ms.Servers([server_load(one, RegionSize(0)) for one in world.servers.values()])
            case ms.ListTables():
                return ms.Tables([summary(one) for one in world.tables.values()])
            case ms.DescribeTable():
                return describe_table(
                    world.names[message.table], message, ReadView(world, AssignerConfig(), StepLog(0), 0)
                )
            case ms.BeginPlan():
                return self.ruler.do(self.ruler.applying.begin(message))
            case ms.AddPlanMoves():
                return self.ruler.do(self.ruler.applying.add(message))
            case ms.AbortPlan():
                return self.ruler.do(self.ruler.applying.abort(message.plan_id))
        raise AssertionError(message)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> MemoryCluster:
    """Six regions on the first of three servers."""
    found = MemoryCluster()

    @contextlib.contextmanager
    def opened(_given: object) -> Iterator[MemoryCluster]:
        yield found

    monkeypatch.setattr(apply, "open_cluster", opened)
    monkeypatch.setattr(revert, "open_cluster", opened)
    return found


@pytest.fixture
def made(cluster: MemoryCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """Return a plan of the present cluster: two regions for each server."""
    directory = tmp_path / "plan"
    assert run(["plan", "create", "--output", str(directory), "--engine", "greedy"]) == 0
    assert "2..2" in capsys.readouterr().out
    assert cluster.store.nodes.get(LAYOUT.plan(PLAN)) is None
    return directory


def _ordered(cluster: MemoryCluster) -> dict[str, str]:
    return {key: one.move for key, one in cluster.ruler.assigner.world.replicas.items() if one.move is not None}


def test_apply_hands_over_what_differs_once(
    cluster: MemoryCluster, made: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The moves are submitted in parts; a part whose answer was lost is sent again, and accepted once."""
    monkeypatch.setattr(apply, "PART_MOVES", 3)
    cluster.lost = [ms.AddPlanMoves]
    assert run(["plan", "apply", str(made), "--no-wait", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)["record"]
    assert (record["state"], record["regions"], record["handed"], record["parts_done"]) == ("APPLYING", 4, 4, 2)
    assert [one.part for one in cluster.asked if isinstance(one, ms.AddPlanMoves)] == [0, 0, 1]
    assert sorted(_ordered(cluster).values()) == ["s2", "s2", "s3", "s3"]
    assert run(["plan", "apply", str(made)]) == ExitStatus.REFUSED
    assert "is being applied already" in capsys.readouterr().err
    assert run(["plan", "show", "--cluster"]) == 0
    assert "APPLYING" in capsys.readouterr().out


def test_abort_and_resume(cluster: MemoryCluster, made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Canceled moves are ordered again, under the plan's id."""
    assert run(["plan", "resume", str(made)]) == ExitStatus.NOT_FOUND
    assert "never applied here" in capsys.readouterr().err
    assert run(["plan", "apply", str(made), "--no-wait"]) == 0
    assert "continues: 0 of 4 moves are done" in capsys.readouterr().out
    assert run(["plan", "abort"]) == 0
    assert "4 were withdrawn" in capsys.readouterr().out
    assert _ordered(cluster) == {}
    assert run(["plan", "abort"]) == ExitStatus.NOT_FOUND
    assert "no plan is applied" in capsys.readouterr().err
    assert run(["plan", "resume", str(made), "--no-wait"]) == 0
    assert len(_ordered(cluster)) == 4
    assert cluster.ruler.applying.running() != ""


def _carried_out(cluster: MemoryCluster) -> None:
    """Let every ordered move end."""
    world = cluster.ruler.assigner.world
    for key, uuid in _ordered(cluster).items():
        world.replicas[key].move = None
        world.set_home(world.replicas[key], world.servers[uuid].incarnation)
    assert cluster.ruler.do(cluster.ruler.applying.abort("")).record.state is PlanState.ABORTED


def test_revert_moves_back_what_is_still_where_the_plan_put_it(
    cluster: MemoryCluster, made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Regions that have moved since stay, with the reason. So do regions that would move to a server that is dead or
    draining."""
    assert run(["plan", "revert", str(made)]) == ExitStatus.NOT_FOUND
    assert "was never applied here" in capsys.readouterr().err
    assert run(["plan", "apply", str(made), "--no-wait"]) == 0
    assert run(["plan", "revert", str(made)]) == ExitStatus.REFUSED
    assert "is being applied" in capsys.readouterr().err
    moved = _ordered(cluster)
    assert sorted(moved.values()) == ["s2", "s2", "s3", "s3"]
    _carried_out(cluster)
    world = cluster.ruler.assigner.world
    gone_on = next(key for key, uuid in moved.items() if uuid == "s3")
    world.set_home(world.replicas[gone_on], world.servers["s2"].incarnation)
    capsys.readouterr()
    assert run(["plan", "revert", str(made), "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "would move 3 replicas back" in said
    assert f"1 replica not moved back: it is no longer where the plan put it ({gone_on.rpartition('-')[0]})" in said
    assert _ordered(cluster) == {}
    assert run(["plan", "revert", str(made), "--json"]) == ExitStatus.REFUSED
    assert "--yes" in capsys.readouterr().err
    cluster.lost = [ms.AddPlanMoves]
    assert run(["plan", "revert", str(made), "--yes", "--no-wait", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["record"]["plan_id"], found["record"]["handed"]) == (f"{found['plan_id']}.revert", 3)
    assert _ordered(cluster) == {key: "s1" for key in moved if key != gone_on}
    _carried_out(cluster)
    assert run(["plan", "revert", str(made), "--dry-run"]) == 0
    assert "nothing to move back" in capsys.readouterr().out


def test_revert_gives_nothing_to_a_server_that_is_being_emptied(
    cluster: MemoryCluster, made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plan", "apply", str(made), "--no-wait"]) == 0
    _carried_out(cluster)
    cluster.ruler.assigner.world.servers["s1"].marked = True
    capsys.readouterr()
    assert run(["plan", "revert", str(made), "--yes"]) == 0
    said = capsys.readouterr().out
    assert "nothing to move back" in said
    assert "4 replicas not moved back: its former server is gone, or is being emptied" in said


def test_a_stale_plan_is_refused_and_rebase_keeps_what_fits(
    cluster: MemoryCluster, made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A server is gone by now: nothing is ordered, unless greedy may place its regions."""
    del cluster.ruler.assigner.world.servers["s3"]
    assert run(["plan", "apply", str(made)]) == ExitStatus.REFUSED
    errors = capsys.readouterr().err
    assert "is outdated: since it was made, 1 server gone (s3)" in errors
    assert "--rebase" in errors
    assert _ordered(cluster) == {}
    assert run(["plan", "apply", str(made), "--rebase", "--dry-run"]) == 0
    assert "would make 3 moves (rebased: 4 of 6 places are the plan's" in capsys.readouterr().out
    assert run(["plan", "apply", str(made), "--rebase", "--no-wait"]) == 0
    assert sorted(_ordered(cluster).values()) == ["s2", "s2", "s2"]


def test_a_plan_that_breaks_rules_now_is_refused(
    cluster: MemoryCluster, made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Resume checks the rules, because the fingerprint has changed in the middle of a plan."""
    assert run(["plan", "apply", str(made), "--no-wait"]) == 0
    assert run(["plan", "abort"]) == 0
    del cluster.ruler.assigner.world.servers["s3"]
    assert run(["plan", "resume", str(made)]) == ExitStatus.REFUSED
    assert "wrong server" in capsys.readouterr().err


def test_a_corrupt_plan_orders_nothing(cluster: MemoryCluster, made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A changed byte in a part or in the kept input is enough."""
    for name in ("part-00000.parquet", "input/servers.parquet"):
        path = made / name
        whole = path.read_bytes()
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        assert run(["plan", "apply", str(made)]) == ExitStatus.REFUSED
        assert name in capsys.readouterr().err
        path.write_bytes(whole)
    assert not any(isinstance(one, ms.BeginPlan) for one in cluster.asked)


def test_a_refusal_is_final(cluster: MemoryCluster) -> None:
    """Only requests with an unknown outcome are sent again."""
    with pytest.raises(CliError, match="is not being applied"):
        apply._submit(cluster, ms.AddPlanMoves("p", 0, []))  # type: ignore[arg-type]


def test_tables_of_tablets_are_left_out_and_named(
    cluster: MemoryCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No server here takes tablets, so a plan with them could never be carried out."""
    words = ["plan", "create", "--output", str(tmp_path / "plan"), "--engine", "greedy"]
    (table,) = cluster.ruler.assigner.world.tables.values()
    made_of_tablets = msgspec.structs.replace(table.record, storage=Storage.TABLET)
    shared, table.record = table.record, made_of_tablets
    assert run(words) == ExitStatus.REFUSED
    said = capsys.readouterr().err
    assert "there is no region to plan" in said
    assert f"left out, because the servers of its tablets are not all of one kind: table {shared.name}" in said
    assert not (tmp_path / "plan").exists()


def test_a_plan_says_what_it_leaves_out(
    cluster: MemoryCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shared regions are planned nevertheless."""
    (table,) = cluster.ruler.assigner.world.tables.values()
    tablets = ms.Regions(msgspec.structs.replace(table.record, name="orders", storage=Storage.TABLET), [])
    monkeypatch.setattr(apply, "every_region", lambda found: [*every_region(found), tablets])
    words = ["plan", "create", "--output", str(tmp_path / "plan"), "--engine", "greedy"]
    assert run(words) == 0
    assert (
        "left out, because the servers of its tablets are not all of one kind: table orders" in capsys.readouterr().out
    )
    shutil.rmtree(tmp_path / "plan")
    assert run([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["left_out"].endswith("table orders")


def test_a_target_is_moved_alone_and_resume_makes_the_rest(
    cluster: MemoryCluster, made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plan", "apply", str(made), "--target", "s3", "--no-wait"]) == 0
    assert sorted(_ordered(cluster).values()) == ["s3", "s3"]
    _carried_out(cluster)
    assert run(["plan", "resume", str(made), "--no-wait"]) == 0
    assert "continues: 0 of 2 moves are done" in capsys.readouterr().out
    parts = [one for one in cluster.asked if isinstance(one, ms.AddPlanMoves)]
    assert [[move.destination for move in part.moves] for part in parts] == [["s3", "s3"], ["s2", "s2"]]


@pytest.mark.parametrize(("answer", "status", "moves"), [("n", ExitStatus.REFUSED, 0), ("y", ExitStatus.OK, 4)])
def test_a_person_is_asked_before_very_many_moves(
    answer: str, status: int, moves: int, cluster: MemoryCluster, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither with --yes nor in a script. Tried: without `_confirm` the refused plan moves four."""
    monkeypatch.setattr(apply, "ASKED_ABOVE", 3)
    asked: list[str] = []

    def confirm(question: str) -> bool:
        asked.append(question)
        return answer == "y"

    monkeypatch.setattr("click.confirm", confirm)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    assert run(["plan", "apply", str(made), "--no-wait"]) == status
    assert len(_ordered(cluster)) == moves
    assert len(asked) == 1
    assert "moves 4 replicas" in asked[0]
    if not moves:
        assert run(["plan", "apply", str(made), "--no-wait", "--yes"]) == 0
        assert len(asked) == 1
