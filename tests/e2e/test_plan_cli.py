"""`rk plan` on a running cluster: created from its state, applied over a master's death, aborted, resumed, refused (N4,
X8)."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from regions import messages as ms
from regions.plan.artifact.files import read_plan
from regions.records.model import PlanState
from regions.records.znodes import decode_plan
from tests.e2e.clusters import run_rk
from tests.e2e.masters import Cluster, any_store, cluster_on
from tests.support.helpers import eventually

pytestmark = pytest.mark.e2e

REGIONS = 600
SPLITS = [f"k{number:04d}" for number in range(1, REGIONS)]


class Planner:
    """`rk plan` with the options of the store."""

    def __init__(self, hosts: str) -> None:
        self.hosts = hosts

    def refused(self, *words: str) -> str:
        done = run_rk("plan", *words, "--store", self.hosts)
        assert done.returncode == 1, f"{words}: {done.returncode} {done.stdout[-2000:]} {done.stderr[-2000:]}"
        return done.stderr

    def asked(self, *words: str) -> Any:
        done = run_rk("plan", *words, "--json", "--store", self.hosts)
        assert done.returncode == 0, f"{words}: {done.returncode} {done.stdout[-2000:]} {done.stderr[-2000:]}"
        return json.loads(done.stdout)


def _ended(cluster: Cluster, plan_id: str) -> PlanState:
    state = decode_plan(cluster.zk.get(cluster.layout.plan(plan_id))[0]).state
    assert state is not PlanState.APPLYING
    return state


def test_a_plan_from_now_is_applied_over_a_failover_aborted_resumed_and_refused(tmp_path: Path) -> None:
    """All in one cluster, because each start of one takes seconds."""
    pytest.importorskip("pyarrow")
    with any_store("one", tmp_path / "store") as hosts, cluster_on(hosts, tmp_path / "c") as cluster:
        late = cluster.servers[2]
        cluster.withdraw(late)
        active = cluster.wait_active()
        cluster.wait_servers(2)
        cluster.ask(active, ms.CreateTable("orders", SPLITS, wait_ms=60_000), ms.Tables)
        late.start()
        cluster.wait_servers(3)
        rk, made = Planner(hosts), tmp_path / "plan"

        # Created from the cluster: the new server gets its third, and each move can be explained.
        report = rk.asked("create", "--output", str(made))
        plan_id = report["manifest"]["plan_id"]
        assert [one["after"] for one in report["figures"]["servers"]] == [REGIONS // 3] * 3
        moves = rk.asked("diff", str(made))["moves"]
        assert len(moves) == REGIONS // 3
        reason = rk.asked("explain", moves[0]["region_id"], "--plan", str(made))["reason"]["replicas"][0]
        assert (reason["server_id"], reason["bound"]) == (cluster.uuid_of(late), "server full")

        # A plan that differs from its manifest is refused, and nothing is ordered.
        corrupt = tmp_path / "corrupt"
        shutil.copytree(made, corrupt)
        part = corrupt / "part-00000.parquet"
        part.write_bytes(part.read_bytes()[:-3] + b"xyz")
        assert "the plan is invalid" in rk.refused("apply", str(corrupt))
        assert cluster.zk.get_children(cluster.layout.moves) == []

        # Aborted: moves that have begun are finished, the others are canceled; nothing is lost.
        applied = rk.asked("apply", str(made), "--no-wait")["record"]
        assert (applied["handed"], applied["parts_done"]) == (REGIONS // 3, 1)
        if _applying(cluster, plan_id):
            run_rk("plan", "abort", "--store", hosts)
        eventually(lambda: _ended(cluster, plan_id), what="the plan has ended")
        cluster.wait_settled()
        cluster.check_owners()

        # Resumed, and its master dies in the middle: the next master continues; nothing is repeated or lost.
        cluster.wait_masters(2)
        _empty_the_third(cluster, rk, made)
        again = rk.asked("resume", str(made), "--no-wait")["record"]
        assert again["plan_id"] == plan_id
        cluster.wait_active().kill()
        eventually(lambda: _ended(cluster, plan_id), what="the next master has ended the plan")
        cluster.wait_settled()
        wanted = {region_id: server for region_id, _, server in read_plan(made)[0].rows}
        eventually(lambda: cluster.owners() == wanted, what="every region is where the plan wants it")
        cluster.check_owners()
        eventually(lambda: not cluster.zk.get_children(cluster.layout.moves), what="no batch is left")
        assert rk.asked("diff", str(made))["moves"] == []
        assert [one["state"] for one in rk.asked("show", "--cluster") if one["plan_id"] == plan_id] == ["DONE"]

        # The cluster has changed since the plan was made.
        assert "is outdated: since it was made" in rk.refused("apply", str(made))
        cluster.servers[0].kill()
        cluster.wait_servers(2)
        cluster.wait_settled()
        done = rk.asked("apply", str(made), "--rebase")
        assert (done["record"]["state"], done["elsewhere"]) == ("DONE", 0)
        assert sorted(Counter(cluster.check_owners().values()).values()) == [REGIONS // 2] * 2


def _applying(cluster: Cluster, plan_id: str) -> bool:
    return decode_plan(cluster.zk.get(cluster.layout.plan(plan_id))[0]).state is PlanState.APPLYING


def _empty_the_third(cluster: Cluster, rk: Planner, made: Path) -> None:
    """Make sure that moves of the plan are missing: empty the server that the plan fills."""
    if len(rk.asked("diff", str(made))["moves"]) < REGIONS // 6:
        third = cluster.uuid_of(cluster.servers[2])
        cluster.ask_active(ms.DrainServer(third, wait_ms=60_000), ms.Accepted)
        cluster.ask_active(ms.DrainServer(third, drain=False), ms.Accepted)

        def filled_again() -> bool:
            servers = cluster.ask_active(ms.ListServers(), ms.Servers).servers
            return not any(one.draining for one in servers)

        eventually(filled_again, what="it may take regions again")
        cluster.wait_settled()
