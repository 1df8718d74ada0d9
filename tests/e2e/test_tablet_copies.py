"""Replicas copied between real `rk server run` processes, under writes, with kill -9 of source and destination."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from coord.rpc.wire import RpcError
from regions.messages import OwnReplica, ReplicaState, ShowReplicas
from regions.records.members import MemberRole
from regionserver.tablets.commands import DONE, PutRow
from regionserver.tablets.copying.messages import (
    CopyJob,
    CopyJobList,
    CopyOutcome,
    CopySource,
    CopyState,
    ListCopyJobs,
    SeenReplica,
    StartTabletCopy,
    TabletCopyAnswer,
)
from regionserver.tablets.messages import TabletWrite, TabletWritten
from tests.e2e.test_region_server_tablets import Cluster, Machine, _now_ms, cluster, master, store
from tests.support.helpers import eventually

pytestmark = pytest.mark.e2e
__all__ = ["cluster", "master", "store"]

TABLET = "r1"
#: Rows of the tablet before the copy, and their size: a copy takes some tenths of a second.
ROWS = 300
VALUE = "v" * 100_000


def own(machine: Machine) -> OwnReplica:
    (found,) = machine.ask(ShowReplicas(tablets=[TABLET])).replicas
    assert isinstance(found, OwnReplica)
    return found


def fill(cluster: Cluster) -> None:
    for number in range(ROWS):
        cluster.put(TABLET, **{f"fill{number:04}": VALUE})


def flip_a_byte(machine: Machine) -> None:
    """Flip one byte of a row, and let the next open read all rows."""
    (path,) = (machine.directory / "data").glob("*.mdb")
    with path.open("r+b") as file:
        content = file.read()
        at = content.index(b"v" * 5000) + 2500
        file.seek(at)
        file.write(b"w")
    Path(f"{path}.used").write_bytes(b"damaged")


def fails(cluster: Cluster) -> Machine:
    """Damage the rows of a follower while it is stopped. Return its server, with a FAILED replica."""
    leader = cluster.leader(TABLET)
    victim = next(one for one in cluster.machines if one is not leader)
    # A clean stop makes a steady point. Without one a start rebuilds the rows from the log.
    assert victim.process is not None
    victim.process.terminate()
    victim.process.wait(60)
    victim.kill()
    flip_a_byte(victim)
    victim.start()
    victim.registered()
    return victim


def start_copy(cluster: Cluster, to: Machine) -> TabletCopyAnswer:
    """Ask for a copy from the leader, as the leader would."""
    leader = cluster.leader(TABLET)
    shown, led, source = own(to), own(leader), leader.registered()
    order = StartTabletCopy(
        to.registered().uuid, TABLET, shown.report.number, MemberRole.VOTER, led.report.term,
        CopySource(led.report.number, source.uuid, source.host, source.peer_port),
        SeenReplica(shown.report.number, shown.report.state, shown.last_term, shown.last_index), "t",
    )  # fmt: skip
    answer = to.ask(order, replies=TabletCopyAnswer)
    assert isinstance(answer, TabletCopyAnswer)
    return answer


def jobs(machine: Machine) -> list[CopyJob]:
    found = machine.ask(ListCopyJobs(), replies=CopyJobList)
    assert isinstance(found, CopyJobList)
    return found.jobs


def receives(machine: Machine) -> None:
    """Wait until a copy has received rows."""

    def some() -> bool:
        found = jobs(machine)
        return bool(found) and (found[0].received > 0 or found[0].ended_ms > 0)

    eventually(some, what="rows of a copy")


@contextmanager
def writing(cluster: Cluster) -> Iterator[list[tuple[str, str]]]:
    """Write rows on a thread. Yield the acknowledged ones."""
    acknowledged: list[tuple[str, str]] = []
    ended = threading.Event()

    def write() -> None:
        for number in itertools.count(1):
            if ended.is_set():
                return
            key, value = f"key{number % 50}", f"value{number}"
            request = TabletWrite(TABLET, "under copies", number, number, _now_ms(), [PutRow(key, value.encode())])
            while not ended.is_set() and not _is_done(cluster, request):
                pass
            if not ended.is_set():
                acknowledged.append((key, value))

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    try:
        yield acknowledged
    finally:
        ended.set()
        thread.join(60)


def _is_done(cluster: Cluster, request: Any) -> bool:
    for machine in cluster.running():
        try:
            found = machine.ask(request, 5.0)
        except (RpcError, OSError):
            continue
        if isinstance(found, TabletWritten):
            assert found.outcome.code == DONE, found
            return True
    return False


def check_rows(cluster: Cluster, acknowledged: list[tuple[str, str]], to: Machine) -> None:
    """Check the rows on the copied replica alone: the other follower is killed, so the copy's vote counts."""
    assert len(acknowledged) > 20
    latest = dict(acknowledged)
    keys = sorted(latest)
    leader = cluster.leader(TABLET)
    other = next(one for one in cluster.machines if one is not to and one is not leader)
    other.kill()
    found = dict(zip(keys, cluster.get(TABLET, *keys), strict=True))
    # The write that was under way at the end may have come after the last acknowledged one.
    assert all(found[key] is not None and int(found[key][5:]) >= int(latest[key][5:]) for key in keys)
    assert cluster.get(TABLET, "fill0000", f"fill{ROWS - 1:04}") == [VALUE, VALUE]
    cluster.put(TABLET, last="1")


def is_mended(machine: Machine) -> bool:
    """Return True if the replica runs again, after a copy."""
    ended = [one for one in jobs(machine) if one.state is CopyState.DONE]
    return bool(ended) and own(machine).report.state is ReplicaState.RUNNING


def test_a_flipped_byte_is_mended_by_a_copy_under_writes(cluster: Cluster) -> None:
    """The leader has the FAILED replica copied by itself."""
    cluster.create()
    fill(cluster)
    victim = fails(cluster)
    with writing(cluster) as acknowledged:
        eventually(lambda: is_mended(victim), what="the copied replica")
        before = len(acknowledged)
        eventually(lambda: _more(acknowledged, before), what="writes after the copy")
    # An operator's copy of a replica that runs. The order names the replica's last entry, so the last write is there.
    leader = cluster.leader(TABLET)
    eventually(lambda: own(victim).last_index == own(leader).last_index, what="the last write in the copied replica")
    answer = start_copy(cluster, victim)
    assert answer.outcome is CopyOutcome.STARTED, answer
    eventually(lambda: jobs(victim)[0].job == answer.job and is_mended(victim), what="the operator's copy")
    eventually(lambda: jobs(victim)[0].state is CopyState.DONE, what="the end of the operator's copy")
    check_rows(cluster, acknowledged, victim)


def _more(acknowledged: list[tuple[str, str]], before: int) -> bool:
    return len(acknowledged) > before + 20


@pytest.mark.parametrize("dies", ["source", "destination"])
def test_a_process_dies_in_the_middle_of_a_copy(cluster: Cluster, dies: str) -> None:
    """kill -9 while rows are copied. Leaders have the copy made again until the replica runs."""
    cluster.create()
    fill(cluster)
    source = cluster.leader(TABLET)
    victim = fails(cluster)
    with writing(cluster) as acknowledged:
        receives(victim)
        dead = source if dies == "source" else victim
        dead.kill()
        dead.start()
        dead.registered()
        eventually(lambda: own(victim).report.state is ReplicaState.RUNNING, what="the copied replica")
        before = len(acknowledged)
        eventually(lambda: _more(acknowledged, before), what="writes after the copy")
    check_rows(cluster, acknowledged, victim)
