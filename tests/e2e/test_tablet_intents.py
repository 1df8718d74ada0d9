"""Operators' intents about members on real processes, while rows are written: no acknowledged row goes missing."""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from regions import messages as ms
from regions.records.members import ConfigId, MemberRole
from regions.records.model import RegionRecord
from regionserver.client import DataError, RegionClient, connect
from tests.e2e.masters import Cluster, any_store, cluster_on
from tests.support.helpers import PATIENCE_S, eventually, finished, rk

pytestmark = pytest.mark.e2e

#: Time limit of one intent on a busy machine: several copies one after the other.
SLOW_S = 240.0
CALL_S = 60.0
SPLITS = ["g", "n"]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Return two masters, five servers, and a table of three tablets with three replicas each."""
    with (
        any_store("one", tmp_path / "store") as hosts,
        cluster_on(hosts, tmp_path / "cluster", masters=2, servers=5) as running,
    ):
        running.wait_active()
        running.wait_servers(5)
        running.wait_masters(2)
        running.ask_active(ms.CreateTable("orders", SPLITS, replication=3, wait_ms=60_000), ms.Tables)
        yield running


class Writing:
    """A thread that writes rows, each once, into all tablets. At the end every acknowledged row is read."""

    def __init__(self, client: RegionClient) -> None:
        self.client = client
        self.rows: dict[str, bytes] = {}
        self.errors: list[Exception] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Writing:
        self._thread.start()
        eventually(lambda: len(self.rows) > 20, SLOW_S, "rows")
        return self

    def _run(self) -> None:
        number = 0
        while not self._is_over.is_set():
            number += 1
            key, value = f"{'agn'[number % 3]}{number:07d}", b"%d" % number * 20
            try:
                self.client.put("orders", key, value, timeout_s=CALL_S)
            except DataError as error:
                self.errors.append(error)
                return
            self.rows[key] = value

    def grows(self) -> None:
        """Wait until more rows were written: the tablets are served."""
        before = len(self.rows)
        eventually(lambda: len(self.rows) > before + 20 or bool(self.errors), SLOW_S, "more rows")
        assert not self.errors

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join(2 * CALL_S)

    def check(self) -> None:
        """Check that every acknowledged row is there."""
        assert not self.errors
        missing = [key for key, value in self.rows.items() if self.client.get("orders", key, timeout_s=CALL_S) != value]
        assert not missing


@contextlib.contextmanager
def written(cluster: Cluster) -> Iterator[Writing]:
    with connect(cluster.hosts) as client:
        with Writing(client) as writing:
            yield writing
            writing.grows()
        writing.check()


def run(cluster: Cluster, *words: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    """Run one command and check its exit status. It prints no traceback."""
    done = finished(rk(*words, "--store", cluster.hosts), 2 * SLOW_S)
    assert "Traceback" not in done.stderr
    assert done.returncode == status, done.stderr
    return done


def voters(region: RegionRecord) -> set[str]:
    return {one.uuid for one in region.members if one.role is MemberRole.VOTER}


def tablet(cluster: Cluster, key: str) -> RegionRecord:
    """Return the record of the tablet that holds a key."""
    return next(one for one in cluster.regions() if one.contains(key))


def intents(cluster: Cluster) -> list[str]:
    found: list[str] = cluster.zk.get_children(cluster.layout.intents)
    return found


def test_a_move_goes_on_when_the_master_dies(cluster: Cluster) -> None:
    """TC-19. The leader's member moves; the active master is killed as soon as it has accepted that."""
    with written(cluster) as writing:
        region = tablet(cluster, "h")
        shown = json.loads(run(cluster, "tablet", "show", region.region_id, "--json").stdout)
        source = next(one["server"] for one in shown["members"] if one["number"] == shown["leader"])
        target = min({cluster.uuid_of(one) for one in cluster.servers} - voters(region))
        way = ("--from", source, "--to", target)

        planned = json.loads(run(cluster, "tablet", "move", "orders:h", *way, "--dry-run", "--json").stdout)
        assert planned["dry_run"]
        assert intents(cluster) == []
        accepted = json.loads(run(cluster, "tablet", "move", "orders:h", *way, "--no-wait", "--json").stdout)
        assert accepted["answer"]["moves"][0]["target"] == target
        former = cluster.wait_active()
        former.kill()

        def moved() -> bool:
            assert voters(tablet(cluster, "h")) == voters(region) - {source} | {target}
            assert intents(cluster) == []
            return True

        eventually(moved, SLOW_S, "the move")
        assert cluster.wait_active() is not former
        writing.grows()
        again = run(cluster, "tablet", "move", "orders:h", *way)
        assert "nothing to do" in again.stdout
        wrong = run(cluster, "tablet", "move", "orders:h", "--from", source, "--to", source, status=2)
        assert "the same server" in wrong.stderr


def test_a_retired_server_has_no_member_left(cluster: Cluster) -> None:
    """TC-21. The command waits for the end and shows the way; a server that is needed is not retired."""
    with written(cluster) as writing:
        leaving = cluster.servers[0]
        uuid = cluster.uuid_of(leaving)
        counted = json.loads(run(cluster, "server", "retire", uuid, "--dry-run", "--json").stdout)["retirement"]
        assert counted["tablets"] == sum(uuid in voters(one) for one in cluster.regions())
        run(cluster, "server", "retire", uuid, "--wait", str(SLOW_S))
        assert not any(uuid in {member.uuid for member in one.members} for one in cluster.regions())
        assert all(len(voters(one)) == 3 for one in cluster.regions())
        leaving.kill()
        writing.grows()
        other = cluster.uuid_of(cluster.servers[1])
        run(cluster, "table", "alter", "orders", "--replicas", "5", "--dry-run", status=1)
        run(cluster, "server", "retire", other, "--wait", str(SLOW_S))
        refused = run(cluster, "server", "retire", cluster.uuid_of(cluster.servers[2]), status=1)
        assert "table orders has 3 replicas" in refused.stderr
        run(cluster, "server", "retire", other, "--cancel")


class Configurations:
    """A thread that notes the voters of each tablet, in the order of their configurations in the store."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        #: Tablet -> id of the configuration and its voters; one that was replaced quickly may be missing.
        self.seen: dict[str, list[tuple[ConfigId, set[str]]]] = {}
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Configurations:
        self._thread.start()
        return self

    def _run(self) -> None:
        while not self._is_over.wait(0.02):
            for one in self._cluster.regions():
                seen = self.seen.setdefault(one.region_id, [])
                if not seen or seen[-1][0] != one.config_id:
                    seen.append((one.config_id, voters(one)))

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join(SLOW_S)


def configurations(cluster: Cluster) -> dict[str, ConfigId]:
    return {one.region_id: one.config_id for one in cluster.regions()}


def test_a_table_grows_and_shrinks_under_writes(cluster: Cluster) -> None:
    """TC-20. 3 -> 1 -> 3 -> 1 -> 5 -> 3, one command each: no voter comes and goes again, and none moves afterwards.

    All servers live, so no tablet has fewer live voters than the smaller of both numbers. Fails if `_too_few_voters`
    in `regions/replication/policy/next_change.py` wants one voter more than `_too_many_voters` leaves.
    """
    before = 3
    with written(cluster) as writing:
        for count in (1, 3, 1, 5, 3):
            words = ("table", "alter", "orders", "--replicas", str(count), "--wait", str(SLOW_S), "--json")
            with Configurations(cluster) as noted:
                found: dict[str, Any] = json.loads(run(cluster, *words).stdout)
                assert found["table"]["table"]["replication"] == count
                assert {len(voters(one)) for one in cluster.regions()} == {count}
                ends = configurations(cluster)
                writing.grows()
                assert configurations(cluster) == ends
            for seen in noted.seen.values():
                for (earlier, some), (later, others) in itertools.pairwise(seen):
                    assert earlier < later
                    assert some <= others if before < count else some >= others, noted.seen
            before = count
        eventually(lambda: cluster.transitions() == [], PATIENCE_S, "no transition")


def test_a_plan_moves_members(cluster: Cluster, tmp_path: Path) -> None:
    """A server that was emptied and is back gets its share of the voters by a plan."""
    with written(cluster):
        uuid = cluster.uuid_of(cluster.servers[0])
        run(cluster, "server", "retire", uuid, "--wait", str(SLOW_S))
        run(cluster, "server", "retire", uuid, "--cancel")
        plan = str(tmp_path / "plan")
        run(cluster, "plan", "create", "--engine", "greedy", "--output", plan)
        applied = json.loads(run(cluster, "plan", "apply", plan, "--json").stdout)
        assert applied["record"]["handed"] > 0
        assert applied["elsewhere"] == 0
        assert any(uuid in voters(one) for one in cluster.regions())
        assert intents(cluster) == []
