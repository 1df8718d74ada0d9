"""Merges of tablets under writers, with a process that dies at each point of them (docs/splits.md).

The table's tablets are on three of four servers each, so many neighbors are brought to the same servers first.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterator

import pytest

from coord.compiled import is_switched_on
from coord.rpc.server import RpcError
from regions import messages as ms
from regions.records.model import RegionRecord
from regionserver.client import RegionClient
from tests.e2e.armed import Armed, Case, Who
from tests.e2e.masters import Cluster
from tests.e2e.test_splits import SLOW_S, Writers, regions_of, said
from tests.e2e.test_splits_tablets import armed_table, check_at_rest, client_of, wait_at_rest
from tests.support.helpers import eventually

pytestmark = pytest.mark.e2e

#: Points in the order in which a merge passes them, and who dies there.
POINTS = (
    Case("Create reshardings", Who.ITSELF),
    Case("heirs copied", Who.ITSELF),
    Case("heirs prepared", Who.LEADER),
    Case("heirs prepared", Who.MASTER),
    Case("SetData reshardings", Who.ITSELF),
    Case("SetData reshardings", Who.LEADER),
    Case("seal applied", Who.ITSELF),
    Case("seal applied", Who.MASTER),
    Case("heir renamed", Who.ITSELF),
    Case("SetData regions", Who.ITSELF),
    Case("wrote OPENING", Who.MASTER),
    Case("heir made", Who.ITSELF),
    Case("BeginSlot", Who.ITSELF),
    Case("WriteBlock READY", Who.LEADER),
)
#: With RK_ALL_POINTS every point (`make kill-points`). Otherwise some; processes die at the others during splits
#: (`test_splits_tablets.py`).
CASES = POINTS if is_switched_on("RK_ALL_POINTS") else tuple(POINTS[at] for at in (1, 2, 4, 7, 9, 10, 12))
#: Each case merges two tablets of its own. All tablets have rows, because a tablet without rows has no file.
SPLITS = [f"{letter}-{at}" for letter in "acemprtx" for at in (1, 2, 3, 4)][:-1]


@pytest.fixture(scope="module")
def armed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Armed]:
    """Return two masters and four servers, and a table of tablets with three replicas."""
    with armed_table(tmp_path_factory.mktemp("data"), SPLITS, servers=4) as running:
        yield running


@pytest.fixture
def client(armed: Armed) -> Iterator[RegionClient]:
    """Return a client that keeps its locations of tablets during a test."""
    with client_of(armed) as made:
        yield made


def are_apart(left: RegionRecord, right: RegionRecord) -> bool:
    """Return True if two tablets have members on different servers."""
    return {one.uuid for one in left.members} != {one.uuid for one in right.members}


def test_tablets_are_merged_under_writers(armed: Armed, client: RegionClient) -> None:
    """Two tablets with members on different servers. No row is lost or doubled, and no file of the parents remains."""
    cluster = armed.cluster
    wait_at_rest(cluster, with_parents=True)
    before = regions_of(cluster)
    left, right = next(pair for pair in itertools.pairwise(before) if are_apart(*pair))
    with Writers(client) as writers:
        dry = json.loads(said(cluster, "region", "merge", left.region_id, right.region_id, "--dry-run", "--json"))
        assert not dry["is_done"]
        answer = json.loads(said(cluster, "region", "merge", right.region_id, left.region_id, "--json"))
        assert answer["is_done"]
        assert said(cluster, "fsck").endswith("nothing is wrong\n")
        writes = writers.writes
        eventually(lambda: writers.writes > writes + 50, what="rows are written to the daughter")
    writers.check()
    (daughter,) = answer["daughters"]
    assert (daughter["start_key"], daughter["end_key"]) == (left.start_key, right.end_key)
    assert len(regions_of(cluster)) == len(before) - 1
    refused = said(cluster, "region", "merge", before[0].region_id, before[-1].region_id, status=1)
    assert "are not neighbors" in refused
    check_at_rest(armed)


def test_a_death_between_two_steps_ends_before_or_after(armed: Armed, client: RegionClient) -> None:
    """For any process that dies at any point: the key space is whole, no row is lost, and the work is done or
    undone."""
    cluster = armed.cluster
    for case in CASES:
        wait_at_rest(cluster, with_parents=False)
        before = regions_of(cluster)
        pair = next(
            (left.region_id, right.region_id)
            for left, right in itertools.pairwise(before)
            if not left.parents and not right.parents
        )
        with Writers(client, 4) as writers:
            armed.take(case, lambda: pair[1], lambda: ask(cluster, *pair))  # noqa: B023
            cluster.wait_servers(4)
            eventually(lambda: is_merged(cluster, *pair), SLOW_S, f"a merge: {case}")  # noqa: B023
            wait_at_rest(cluster, with_parents=False)
            writes = writers.writes
            eventually(lambda: writers.writes > writes + 50 or writers.errors, SLOW_S, "rows are written")  # noqa: B023
        writers.check()
        assert len(regions_of(cluster)) == len(before) - 1, case
    check_at_rest(armed)


def is_merged(cluster: Cluster, left: str, right: str) -> bool:
    """Return True if two tablets are merged. Ask for the merge again if it was canceled."""
    if not {left, right} & {one.region_id for one in regions_of(cluster)}:
        return True
    if not cluster.zk.get_children(cluster.layout.reshardings):
        with contextlib.suppress(AssertionError):
            wait_at_rest(cluster, with_parents=False)
        ask(cluster, left, right)
    return False


def ask(cluster: Cluster, left: str, right: str) -> None:
    """Ask until a master has taken the request; the master may die before it answers."""

    def is_taken() -> bool:
        try:
            cluster.ask(cluster.wait_active(), ms.MergeRegions(left, right), ms.Resharded)
        except RpcError as error:
            return error.code != ms.BUSY
        except OSError:
            pass
        return True

    eventually(is_taken, SLOW_S, f"a master takes the merge of {left} and {right}")
