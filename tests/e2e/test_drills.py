"""Each drill on one cluster of `rk up`: it measures, the invariants hold, nothing is lost, and the cluster is whole
afterwards (N1).

The cluster begins with the default table, which consists of tablets. Then a table of shared regions is added, so that
all other drills must be correct for both kinds.

`make test` runs each once, `make test-drills` five times (RK_DRILL_RUNS), over real processes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.up.control import ControlRequest, DaemonState, ask
from cli.up.examples import example_path
from tests.e2e.beside import health_beside_clients
from tests.e2e.clusters import LocalUp, free_base_port, local_up, run_rk
from tests.support.helpers import eventually, heed_ctrl_c, rk

pytestmark = pytest.mark.e2e

SHAPE = ("--store-nodes", "3", "--masters", "2", "--servers", "3", "--regions", "8", "--plan-engine", "greedy")
#: Shared regions of the second table.
SHARED = 40
RUNS = int(os.environ.get("RK_DRILL_RUNS", "1"))
SEED = 100
DRILL_DEADLINE_S = 400.0
#: Low, so that the test checks the drill and not this machine.
RATE = "80"
#: High, for the same reason: `rk drill` has the gaps that an idle machine must reach.
GAP = ("--gap-max", "20")


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalUp]:
    """Yield the cluster that `rk up` starts by default, with a table of three replicas, and beside it one with columns.
    Each drill must leave the cluster whole."""
    data_dir = tmp_path_factory.mktemp("drills") / "rk-data"
    with local_up(data_dir, "--base-port", str(free_base_port()), *SHAPE) as found:
        found.event("up")
        words = ("table", "create", "sales", "--replicas", "3", "--column", "id:int64:key", "--column", "amount:double")
        made = run_rk(*words, "--data-dir", str(data_dir))
        assert made.returncode == 0, made.stderr
        yield found


@pytest.fixture(scope="module")
def up(newcomer: LocalUp) -> LocalUp:
    """Yield the same cluster with a table of shared regions beside the tablets."""
    words = ("table", "create", "files", "--regions", str(SHARED), "--from", str(example_path()))
    made = run_rk(*words, "--data-dir", str(newcomer.data_dir))
    assert made.returncode == 0, made.stderr
    assert "rows in the shared directory" in made.stdout
    return newcomer


def drill(up: LocalUp, name: str, *options: str, members: str = "no tablet has moved") -> list[dict[str, Any]]:
    """Run a drill RUNS times. Check that all invariants of each run held, and return the reports."""
    words = ("drill", name, "--json", "--data-dir", str(up.data_dir), "--seed", str(SEED), "--rate", RATE)
    with health_beside_clients(up):
        done = run_rk(*words, "--repeat", str(RUNS), *options, timeout_s=DRILL_DEADLINE_S * RUNS)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    answer: dict[str, Any] = json.loads(done.stdout)
    assert answer["held"]
    reports = answer["runs"] if RUNS > 1 else [answer]
    assert [one["seed"] for one in reports] == list(range(SEED, SEED + RUNS))
    for report in reports:
        assert all(check["held"] for check in report["checks"])
        names = {check["name"] for check in report["checks"]}
        assert {"only legal transitions", "every daemon runs, none died by itself"} <= names
        assert {phase["name"] for phase in report["phases"]} >= {"check", "load", "checks"}
        if "--no-load" not in options:
            assert "no row lost, none written twice" in names
            assert report["traffic"]["acknowledged_writes"] > 0
            assert report["traffic"]["lost_or_doubled"] == 0
            assert "histories of rows are linearizable" in names
        assert {"each tablet has one leader, every replica runs", members} <= names
    kept = recorded(up)[-RUNS:]
    assert [(one["drill"], one["seed"], one["verdict"]) for one in kept] == [
        (name, report["seed"], "held") for report in reports
    ]
    return reports


def recorded(up: LocalUp) -> list[dict[str, Any]]:
    """Return the records of the drills on a cluster, oldest first."""
    done = run_rk("drill", "list", "--json", "--data-dir", str(up.data_dir))
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)["drills"]
    return found


def figures(report: dict[str, Any]) -> dict[str, float]:
    """Return the figures of a report by name."""
    return {one["name"]: one["value"] for one in report["figures"]}


def check_names(report: dict[str, Any]) -> set[str]:
    """Return the names of the checks."""
    return {one["name"] for one in report["checks"]}


def test_a_newcomers_table_survives_a_dead_server(newcomer: LocalUp) -> None:
    """No region moves or is reopened: other members lead at once, and the server returns as a member."""
    for report in drill(newcomer, "server-crash"):
        found = figures(report)
        assert found["all tablets led elsewhere"] < found["until noticed"], "nobody waits for the store"
        assert "region not open, longest" not in found


@pytest.mark.parametrize("name", ["tablet-server-crash", "retire-server"])
def test_a_drill_that_needs_a_spare_server_is_refused(newcomer: LocalUp, name: str) -> None:
    """Three servers cannot hold three replicas without one of them; nothing is killed."""
    done = run_rk("drill", name, "--data-dir", str(newcomer.data_dir))
    assert done.returncode == 1
    assert "this drill needs 4 region servers" in done.stderr
    assert "killed" not in done.stdout


def test_the_loss_of_the_only_rack_is_refused(newcomer: LocalUp) -> None:
    done = run_rk("drill", "tablet-rack-loss", "--data-dir", str(newcomer.data_dir))
    assert done.returncode == 1
    assert "all servers are in one rack" in done.stderr
    assert "killed" not in done.stdout


@pytest.mark.parametrize("name", ["tablet-leader-kill", "tablet-freeze"])
def test_tablets_outlive_their_leader(newcomer: LocalUp, name: str) -> None:
    """Other members lead, every client gets its answer, and the server returns as the same member.

    The load writes keys and bytes, which a table with columns rejects: each such drill said INVARIANTS BROKEN.
    """
    for report in drill(newcomer, name, *GAP):
        assert "no reads and writes of tables with columns: sales" in report["notes"]
        assert report["victim"].startswith("server-")
        assert {"no tablet silent for longer than 20 s", "no request to a tablet failed"} <= check_names(report)
        assert figures(report)["all its tablets led elsewhere"] > 0


@pytest.mark.parametrize("direction", ["both", "in", "out"])
def test_tablets_outlive_a_leader_that_is_cut_off(newcomer: LocalUp, direction: str) -> None:
    """Clients still reach the isolated server, which answers no read, and find the new leaders."""
    for report in drill(newcomer, "tablet-cut", *GAP, "--direction", direction):
        assert f"{report['victim']} answered no read while isolated" in check_names(report)
        assert "no request to a tablet failed" in check_names(report)
        found = figures(report)
        assert 0 < found["all its tablets led elsewhere"] < found["cut off"]


def test_tablets_need_neither_store_nor_masters(newcomer: LocalUp) -> None:
    """A leader dies while both are away, and comes back before they do; no request fails."""
    for report in drill(newcomer, "store-outage", *GAP, "--outage-s", "4"):
        assert "no request to a tablet failed" in check_names(report)
        found = figures(report)
        assert 0 < found["its replicas run again"] < found["no store and no master"]
        assert found["no store and no master"] >= 4


def test_a_master_failover_completes_all_moves(up: LocalUp) -> None:
    """A new epoch, and every region OPENED again."""
    for report in drill(up, "master-failover"):
        found = figures(report)
        assert report["victim"].startswith("master-")
        assert found["no active master"] > 0
        assert found["all regions OPENED"] >= found["no active master"]
        assert report["transitions"] > SHARED


def test_the_regions_of_a_crashed_server_open_elsewhere(up: LocalUp) -> None:
    """Every region of the victim, and the time that each was not open, for the master and for its clients."""
    for report in drill(up, "server-crash"):
        found = figures(report)
        assert report["victim"].startswith("server-")
        assert found["until noticed"] < found["all its regions OPENED"]
        assert found["region not open, longest"] > 0
        seen = report["traffic"]["unavailability"]
        assert 0 < seen["affected"] == len(seen["per_region"])
        assert 0 < seen["p50_s"] <= seen["p99_s"] <= seen["longest_s"]
        assert found["all tablets led elsewhere"] < found["until noticed"], "nobody waits for the store"


def test_a_thawed_server_serves_nothing_from_its_old_lease(up: LocalUp) -> None:
    """Requests for its old openings wait in its sockets when it continues, and it rejects them all."""
    for report in drill(up, "server-freeze"):
        assert {"nothing was served from the old lease", "no rejected write appeared"} <= check_names(report)
        assert figures(report)["frozen"] > figures(report)["until noticed"]


@pytest.mark.parametrize(
    ("process", "duration", "event"),
    [
        ("server-1", "8s", "regions open on other servers"),
        ("server-1", "1s", ""),
        ("master-1", "6s", "session ends"),
        ("store-1", "4s", ""),
    ],
)
def test_what_a_freeze_causes_was_forecast(up: LocalUp, process: str, duration: str, event: str) -> None:
    """N12: sessions, moves and elections are as forecast, by process and duration."""
    for report in drill(up, "freeze", process, "--for", duration):
        assert report["victim"] == process
        happened = {
            one["event"] for one in report["forecast"] if one["outcome"] != "did not happen" and one["is_observed"]
        }
        certain = {one["event"] for one in report["forecast"] if one["expected"] == "yes"}
        assert all(one["agrees"] for one in report["forecast"])
        assert "session ends" not in happened or event
        assert not event or event in happened & certain


def test_the_death_of_the_store_leader_loses_no_acknowledged_write(up: LocalUp) -> None:
    """The write is on all three nodes, also on the restarted one, and only once."""
    for report in drill(up, "store-leader", "--no-load"):
        assert report["victim"].startswith("store-")
        assert report["traffic"] is None
        assert figures(report)["acknowledged store writes"] >= 400
        assert {"no store write lost", "no store write executed twice"} <= check_names(report)


def test_the_majority_of_a_partitioned_store_continues(up: LocalUp) -> None:
    """The isolated node serves no client and acknowledges nothing until the links are healed."""
    for report in drill(up, "store-partition"):
        assert f"{report['victim']} acknowledged nothing while isolated" in check_names(report)
        found = figures(report)
        assert found["no leader seen"] > 0
        assert found["until it stopped serving"] > 0


def test_a_rolling_restart_disturbs_only_regions_that_move(up: LocalUp) -> None:
    """Every daemon has a new process afterwards."""
    before = {one.name: one.pid for one in daemons(up)}
    for report in drill(up, "rolling-restart"):
        assert {"no outage but a region's own move", "every daemon stopped in order"} <= check_names(report)
    assert all(one.pid not in (0, before[one.name]) for one in daemons(up))


def test_killing_all_daemons_loses_nothing(up: LocalUp) -> None:
    """All regions are open again under a new epoch."""
    before = {one.name: one.pid for one in daemons(up)}
    for report in drill(up, "kill-everything"):
        assert figures(report)["all regions OPENED"] >= figures(report)["active master"] > 0
    assert all(one.pid not in (0, before[one.name]) for one in daemons(up))


def test_ddl_stress_keeps_every_acknowledged_operation(up: LocalUp) -> None:
    """TS-04 in a short form: the active master is killed, frozen and deposed while clients change tables; the expected
    catalog holds, and no table of the drill remains."""
    elections, operations = (3, 45) if RUNS == 1 else (20, 200)
    counts = ("--elections", str(elections), "--operations", str(operations), "--server-crashes", "1")
    options = (*counts, "--clients", "4", "--no-load")
    for report in drill(up, "ddl-storm", *options):
        found = figures(report)
        assert (found["elections"], found["operations"]) == (elections, operations)
        assert found["region servers killed"] == 1
        assert {f"no active master, {how}, longest" for how in ("killed", "frozen", "deposed")} <= found.keys()
        assert found["longest wait"] < 60
        assert found["create: ok"] > 0
        assert found["retried"] > 0
        names = check_names(report)
        assert {"every operation had a definite result", "no tablet left over, missing or in the wrong state"} <= names
        assert {"the store's tables are those of the model", "the master answers the same"} <= names
    done = run_rk("table", "list", "--json", "--data-dir", str(up.data_dir))
    assert "ddl-storm" not in done.stdout, "the tables are deleted in the end"


def daemons(up: LocalUp) -> list[DaemonState]:
    """Return the daemons of the cluster."""
    return ask(up.data_dir, ControlRequest("list"))


def test_an_interrupted_drill_restores_the_cluster(up: LocalUp) -> None:
    """Ctrl-C while a server is frozen: the server continues, and the exit status is 130."""
    words = rk("drill", "server-freeze", "--no-load", "--data-dir", str(up.data_dir))
    process = subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=heed_ctrl_c,  # noqa: PLW1509 - sets one handler
    )
    try:
        assert process.stdout is not None
        assert any("(SIGSTOP)" in line for line in process.stdout), "it ended"
        assert any(is_stopped(one.pid) for one in daemons(up))
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=120.0)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130, said
    assert "continued " in said
    assert not any(is_stopped(one.pid) for one in daemons(up))
    last = recorded(up)[-1]
    assert (last["drill"], last["verdict"]) == ("server-freeze", "interrupted")
    shown = run_rk("drill", "show", last["drill_id"], "--data-dir", str(up.data_dir))
    assert shown.returncode == 0, shown.stderr
    assert "(SIGSTOP)" in shown.stdout


def test_a_drill_ends_when_its_cluster_has_gone(tmp_path: Path) -> None:
    """Ctrl-C after a crash of the whole cluster: no process could be restored, so the drill does not try."""
    data_dir = tmp_path / "rk-data"
    with local_up(data_dir, "--base-port", str(free_base_port()), *SHAPE) as found:
        found.event("up")
        words = rk("drill", "tablet-freeze", "--data-dir", str(data_dir))
        process = subprocess.Popen(
            words,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=heed_ctrl_c,  # noqa: PLW1509 - sets one handler
        )
        try:
            eventually(lambda: any(is_stopped(one.pid) for one in daemons(found)), what="a server is frozen")
            found.kill_everything()
            process.send_signal(signal.SIGINT)
            said, _ = process.communicate(timeout=120.0)
        finally:
            process.kill()
            process.wait()
    assert process.returncode == 130, said
    assert "the drill's rows and znodes were not deleted" in said


def is_stopped(pid: int) -> bool:
    """Return True if a process is frozen."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_a_drill_of_an_unhealthy_cluster_is_refused(up: LocalUp) -> None:
    """The error names the daemon that stays down, and nothing is changed."""
    ask(up.data_dir, ControlRequest("kill", "master-2", signal.SIGTERM))
    eventually(lambda: any(not one.pid for one in daemons(up)), what="master-2 has stopped")
    done = run_rk("drill", "server-crash", "--data-dir", str(up.data_dir), timeout_s=180.0)
    ask(up.data_dir, ControlRequest("start", "master-2"))
    assert done.returncode == 1
    assert "master-2 is not running" in done.stderr
    assert "killed" not in done.stdout


def test_a_drill_without_a_local_cluster_says_what_it_needs(tmp_path: Path) -> None:
    """Exit status 3: there is no `rk up` to restart victims."""
    done = run_rk("drill", "server-crash", "--data-dir", str(tmp_path))
    assert done.returncode == 3
    assert "no `rk up` runs" in done.stderr
