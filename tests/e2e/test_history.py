"""`rk history` compared with a stopped node's log: each step once, in order, by its actor, after every kind of
takeover."""

from __future__ import annotations

import itertools
import json
import signal
from pathlib import Path
from typing import Any

import pytest

from coord.errors import OK
from coord.offline.directory import StoppedDirectory
from coord.raft.membership import decode_configuration
from coord.raft.messages import CONFIG, LEVEL, NORMAL
from coord.server.config.addresses import config_text
from coord.storage.records import LogItem
from coord.tree.command import decode_batch
from coord.tree.machine import CommandOutcome, StateMachine
from regions import messages as ms
from regions.records.znodes import Layout, decode_master, decode_server, decode_transition
from tests.e2e.clusters import run_rk
from tests.e2e.masters import Cluster, Process, cluster_on, own_store
from tests.support.helpers import eventually

pytestmark = pytest.mark.e2e

#: Region, state before, state after, the address of the process that wrote the step.
Step = tuple[str, str, str, str]


class Log:
    """The steps in the log of a stopped node, found by applying the log again."""

    def __init__(self, directory: Path) -> None:
        self.steps: list[Step] = []
        self._layout = Layout()
        self._states: dict[str, str] = {}
        self._addresses: dict[int, str] = {}
        machine = StateMachine()
        with StoppedDirectory(directory) as found:
            assert found.snapshots() == [], "the log reaches back to its beginning"
            for item in self._items(found):
                if item.kind == CONFIG:
                    machine.apply_membership(config_text(decode_configuration(item.data)))
                elif item.kind == LEVEL:
                    machine.raise_level(item.data)
                elif item.kind == NORMAL:
                    time_ms, commands = decode_batch(item.data)
                    machine.begin_batch(item.data)
                    for command in commands:
                        self._performed(machine, machine.apply(command, time_ms))

    @staticmethod
    def _items(found: StoppedDirectory) -> list[LogItem]:
        latest: dict[int, LogItem] = {}
        for _, record in found.log().records():
            latest |= {item.index: item for item in record.items if isinstance(item, LogItem)}
        return [latest[index] for index in sorted(latest)]

    def _performed(self, machine: StateMachine, outcome: CommandOutcome) -> None:
        for path in dict.fromkeys(path.decode() for _, path, _ in outcome.events):
            node = machine.tree.nodes.get(path.encode())
            data = b"" if node is None else node.data or b""
            if path.startswith(f"{self._layout.servers}/") and data:
                server = decode_server(data)
                self._addresses[outcome.session_id] = f"{server.host}:{server.port}"
            elif path.startswith(f"{self._layout.masters}/") and data:
                master = decode_master(data)
                self._addresses[outcome.session_id] = f"{master.host}:{master.port}"
            elif self._layout.parse_transition(path) is not None:
                assert outcome.err == OK
                key = path.rpartition("/")[2]
                before = self._states.get(key, "")
                after = self._states[key] = "" if node is None else decode_transition(data).state.value
                self.steps.append((key, before, after, self._addresses[outcome.session_id]))


def history_of(cluster: Cluster) -> list[Step]:
    """Return the output of `rk history` for regions."""
    done = run_rk("history", "--limit", "0", "--json", "--store", cluster.hosts)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert (answer["left_out"], answer["unreadable"]) == (0, [])
    return [
        (f"{one['region']}-{one['replica']}", one["before"], one["after"], one["actor"])
        for one in answer["steps"]
        if one["region"]
    ]


class Takeovers:
    """One takeover after the other while transitions are under way."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._tables = 0

    def _begin(self, frozen: Process) -> None:
        """Create a table while one server is frozen: its regions stay in transition, those of the others come and
        go."""
        self._tables += 1
        splits = [f"{number:02}" for number in range(1, 40)]
        frozen.signal(signal.SIGSTOP)
        self.cluster.ask_active(ms.CreateTable(f"table{self._tables}", splits), ms.Tables)
        eventually(lambda: 0 < len(self.cluster.transitions()) < 30, what="some regions wait, others are open")

    def killed(self, frozen: Process) -> None:
        """Kill the active master with SIGKILL; a server takes its steps while no master is active."""
        self._begin(frozen)
        active = self.cluster.wait_active()
        active.kill()
        frozen.signal(signal.SIGCONT)
        self._over(active)

    def stopped(self, frozen: Process) -> None:
        """Stop the active master with SIGTERM."""
        self._begin(frozen)
        active = self.cluster.wait_active()
        assert active.terminate() == 0
        frozen.signal(signal.SIGCONT)
        self._over(active)

    def killed_while_moving(self, leaving: Process, frozen: Process) -> None:
        """Kill the active master while a server hands over its regions, some of them to a frozen server."""
        frozen.signal(signal.SIGSTOP)
        leaving.signal(signal.SIGTERM)
        eventually(self.cluster.transitions, what="a region that moves")
        active = self.cluster.wait_active()
        active.kill()
        frozen.signal(signal.SIGCONT)
        assert leaving.popen is not None
        leaving.popen.wait(60)
        leaving.kill()
        leaving.start()
        self.cluster.wait_servers(3)
        self._over(active)

    def all_killed(self, frozen: Process) -> None:
        """Kill all processes; the next master deletes all transitions that it finds."""
        self._begin(frozen)
        cluster = self.cluster
        everybody = [*cluster.masters, *cluster.servers]
        for process in everybody:
            process.kill()
        for process in everybody:
            process.start()
        cluster.wait_servers(3)
        cluster.wait_settled()

    def _over(self, former: Process) -> None:
        self.cluster.wait_settled()
        former.start()
        self.cluster.wait_masters(2)


def test_one_move_is_one_cause_in_the_history_and_in_both_logs(tmp_path: Path) -> None:
    """`rk history --cause` lists all steps of one request, and no others; the log lines have the same id."""
    with own_store(tmp_path / "store", 1) as hosts, cluster_on(hosts, tmp_path / "cluster") as cluster:
        cluster.wait_servers(3)
        cluster.ask_active(ms.CreateTable("orders", ["m"], wait_ms=30_000), ms.Tables)
        cluster.wait_settled()
        moved, other = cluster.regions()
        at = moved.replicas[0].uuid
        goal = next(uuid for uuid in map(cluster.uuid_of, cluster.servers) if uuid != at)
        answer = cluster.ask_active(ms.MoveRegion(moved.region_id, 0, goal, 30_000), ms.Accepted)
        cluster.ask_active(ms.MoveRegion(other.region_id, 0, "", 30_000), ms.Accepted)
        cause = answer.cause_id
        done = run_rk("history", "--cause", cause, "--only", "steps", "--json", "--store", cluster.hosts)
        assert done.returncode == 0, done.stderr
        steps = json.loads(done.stdout)["steps"]
        assert [(one["region"], one["after"]) for one in steps] == [
            (moved.region_id, after) for after in ("CLOSING", "CLOSED", "OFFLINE", "OPENING", "OPENED", "")
        ]
        assert {one["cause_id"] for one in steps} == {cause}
        assert steps[0]["origin"].startswith(f"request: MoveRegion {moved.region_id} from 127.0.0.1:")
        assert [one["origin"] for one in steps[1:]] == [""] * 5
        lines = run_rk("history", "--cause", cause, "--only", "steps", "--store", cluster.hosts).stdout.splitlines()
        assert len(lines) == 6
        assert all(f"[{cause}" in line for line in lines)
        logs = {cluster.uuid_of(one): one.log.read_text() for one in cluster.servers}
        assert at is not None
        assert f"ordered to close 1 regions, cause {cause}" in logs[at]
        assert f"ordered to open 1 regions, cause {cause}" in logs[goal]
        assert f"cause {cause} begins: {steps[0]['origin']}" in cluster.wait_active().log.read_text()


def test_the_past_is_read_back_as_it_was(tmp_path: Path) -> None:
    """N2: `rk state --at`, `rk history --replay` and `--owner` against what the store said at the time.

    Fails if `picture_at` ignores its point, if `replay` keeps entries outside of the range, and if `owners_of` forgets
    the holder before a move.
    """

    def asked(*words: str) -> Any:
        done = run_rk(*words, "--json", "--store", cluster.hosts)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    with own_store(tmp_path / "store", 1) as hosts, cluster_on(hosts, tmp_path / "cluster") as cluster:
        cluster.wait_servers(3)
        cluster.ask_active(ms.CreateTable("orders", ["m"], wait_ms=30_000), ms.Tables)
        cluster.wait_settled()
        moved = cluster.regions()[0]
        region_id, first = moved.region_id, moved.replicas[0].uuid
        held = [first]
        for _ in range(2):
            goal = next(uuid for uuid in map(cluster.uuid_of, cluster.servers) if uuid != held[-1])
            cluster.ask_active(ms.MoveRegion(region_id, 0, goal, 30_000), ms.Accepted)
            cluster.wait_settled()
            held.append(goal)
        servers = [one["server"] for one in asked("server", "list")]
        names = {one["uuid"]: f"{one['host']}:{one['port']}" for one in servers}
        steps = asked("history", region_id, "--only", "steps", "--limit", "0")["steps"]
        ends = [one["zxid"] for one in steps if one["before"] == "OPENED"]
        assert len(ends) == 3
        for zxid, uuid in zip(ends, held, strict=True):
            then = asked("state", "--at", hex(zxid))
            found = next(one for one in then["regions"] if one["region"] == region_id)
            assert found["open_on"] == names[uuid]
        played = asked("history", region_id, "--only", "steps", "--replay", f"{hex(ends[0])}..{hex(ends[1])}")
        assert [one["after"] for one in played["steps"] if one["region"] == region_id] == [
            "CLOSING", "CLOSED", "OFFLINE", "OPENING", "OPENED", ""
        ]  # fmt: skip
        for side, uuid in (("before", held[0]), ("after", held[1])):
            found = next(one for one in played[side]["regions"] if one["region"] == region_id)
            assert found["open_on"] == names[uuid]
        owners = asked("history", region_id, "--owner")
        assert [one["server"] for one in owners if not one["is_gap"]] == [names[uuid] for uuid in held]
        assert all(one["to_ms"] <= two["from_ms"] for one, two in itertools.pairwise(owners))
        lines = run_rk("history", region_id, "--owner", "--store", cluster.hosts).stdout.splitlines()
        assert len([line for line in lines if "  nobody to " not in line]) == len(owners)
        assert lines[-1].endswith(f"{names[held[-1]]} until now")
        closed = run_rk("region", "unassign", region_id, "--store", cluster.hosts)
        assert closed.returncode == 0, closed.stderr
        ended, nobody = run_rk("history", region_id, "--owner", "--store", cluster.hosts).stdout.splitlines()[-2:]
        assert f"  {names[held[-1]]} to " in ended
        assert nobody.endswith("  nobody until now")
        then = next(one for one in asked("state", "--at", "0s")["regions"] if one["region"] == region_id)
        assert (then["standing"], then["open_on"]) == ("CLOSED", "")


@pytest.mark.parametrize("option", ["--no-mirror", "--mirror"])
def test_the_history_equals_the_steps_in_the_stores_log(tmp_path: Path, option: str) -> None:
    """Takeovers from the store (cold) and from a mirror (warm), by SIGKILL and SIGTERM, and a cluster startup."""
    store, folder = tmp_path / "store", tmp_path / "cluster"
    with own_store(store, 1) as hosts, cluster_on(hosts, folder, options=[option]) as cluster:
        cluster.wait_servers(3)
        cluster.wait_masters(2)
        takeovers = Takeovers(cluster)
        first, second, third = cluster.servers
        takeovers.killed(first)
        takeovers.stopped(second)
        takeovers.killed_while_moving(third, first)
        takeovers.all_killed(first)
        for process in [*cluster.masters, *cluster.servers]:
            process.kill()
        found = history_of(cluster)
    log = Log(store / "store1").steps
    assert {after for _, _, after, _ in log} >= {"OFFLINE", "OPENING", "OPENED", "CLOSING", "CLOSED", ""}
    by_key: dict[str, list[Step]] = {}
    for step in log:
        by_key.setdefault(step[0], []).append(step)
    for key, true in by_key.items():
        assert [one for one in found if one[0] == key] == true
    assert len(found) == len(log)
