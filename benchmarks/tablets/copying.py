"""A copy of one tablet from its leader to another server, beside a plain file that is sent and synced.

The tablet has one region with rows of one size. A member's server copies it anew from the leader, several times. The
time is the whole job's: the former replica to quarantine, rows and log received, synced, read back and checked, READY.

The peer is the least that any copy does: two processes, sendfile into a socket on loopback, received, written, fsync.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import statistics
import time
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.assign.lab import DEADLINE_S, Daemon, cpu_s, say
from benchmarks.tablets.cluster import CALL_S, TABLET, TabletLab, region_prefix, tablet_lab
from coord.rpc.blocking import call_blocking
from regions.records.members import MemberRole
from regionserver.client.client import Change, connect
from regionserver.tablets.copying.messages import (
    CopyJob,
    CopyJobList,
    CopySource,
    CopyState,
    ListCopyJobs,
    SeenReplica,
    StartTabletCopy,
    TabletCopyAnswer,
)
from tests.support.helpers import eventually

#: Sizes of rows, and bytes of keys and values that the tablet has.
SIZES: Final = (100, 1_000, 10_000)
BYTES: Final = 128 << 20
REQUEST_BYTES: Final = 100_000
COPIES: Final = 5
_CHUNK: Final = 1 << 20


class Copied(msgspec.Struct, frozen=True):
    """Copies of one tablet: medians. MB are millions of bytes of the copied file and log."""

    row_bytes: int
    bytes: int
    mb_per_s: float
    #: CPU of the whole process during a copy, for each MB.
    source_ms: float
    target_ms: float
    #: A plain file of as many bytes.
    plain_mb_per_s: float


def copies(folder: Path, row_bytes: int) -> Copied:
    """Measure copies of a tablet with rows of this size."""
    # The rate that servers grant copies by default is close to the goal, so that it would be measured.
    with tablet_lab(folder, server_options=("--copy-rate", "0")) as cluster:
        cluster.create(TABLET, 1, TABLET)
        _fill(cluster, row_bytes)
        found = []
        plain = []
        for _ in range(COPIES):
            found.append(_copied(cluster))
            plain.append(_plain(folder, found[-1][0].received))
    first = found[0][0].received
    speeds = [job.received / 1e3 / (job.ended_ms - job.began_ms) for job, _, _ in found]
    median = statistics.median
    return Copied(
        row_bytes,
        first,
        median(speeds),
        median(source / job.received * 1e9 for job, source, _ in found),
        median(target / job.received * 1e9 for job, _, target in found),
        median(plain),
    )


def _fill(cluster: TabletLab, row_bytes: int) -> None:
    count = BYTES // row_bytes
    say(f"{count:,} rows of {row_bytes} bytes")
    with connect(cluster.hosts, timeout_s=DEADLINE_S) as client:
        each = REQUEST_BYTES // row_bytes
        for begin in range(0, count, each):
            rows = range(begin, min(count, begin + each))
            client.write(TABLET, [Change(f"{region_prefix(0)}-{row:09}", os.urandom(row_bytes)) for row in rows])


def _copied(cluster: TabletLab) -> tuple[CopyJob, float, float]:
    """Copy the tablet to a server that does not lead it. Return the job, and the CPU seconds of source and target."""
    tablet = next(iter(cluster.replicas(cluster.servers[0])))
    source, target = eventually(lambda: _ends(cluster, tablet), DEADLINE_S, "equal replicas")
    order = _order(cluster, tablet, source, target)
    before = cpu_s(source.pid), cpu_s(target.pid)
    answer = call_blocking(target.address, order, CALL_S, expect=TabletCopyAnswer)
    assert answer.job, f"{answer.outcome}: {answer.reason}"

    def ended() -> CopyJob | None:
        jobs = call_blocking(target.address, ListCopyJobs(), CALL_S, expect=CopyJobList).jobs
        return next((one for one in jobs if one.job == answer.job and one.ended_ms), None)

    job = eventually(ended, DEADLINE_S, "the end of a copy")
    assert job.state is CopyState.DONE, job
    used = cpu_s(source.pid) - before[0], cpu_s(target.pid) - before[1]
    say(f"{job.received / 1e6:.0f} MB in {job.ended_ms - job.began_ms} ms")
    return job, *used


def _ends(cluster: TabletLab, tablet: str) -> tuple[Daemon, Daemon] | None:
    """Return the leader's server and the next one, once they have the same entries."""
    leading = next((server for server, count in cluster.led().items() if count), None)
    if leading is None:
        return None
    at = cluster.servers.index(leading)
    other = cluster.servers[(at + 1) % len(cluster.servers)]
    ends = [cluster.replicas(one).get(tablet) for one in (leading, other)]
    if None in ends or len({(one.last_index, one.commit_index) for one in ends if one is not None}) > 1:
        return None
    return leading, other


def _order(cluster: TabletLab, tablet: str, source: Daemon, target: Daemon) -> StartTabletCopy:
    records = {(one.host, one.port): one for one in cluster.records().values()}
    there, here = records[source.address], records[target.address]
    leader, own = cluster.replicas(source)[tablet], cluster.replicas(target)[tablet]
    report = own.report
    return StartTabletCopy(
        here.uuid,
        tablet,
        report.number,
        MemberRole.VOTER,
        leader.report.term,
        CopySource(leader.report.number, there.uuid, there.host, there.peer_port),
        SeenReplica(report.number, report.state, own.last_term, own.last_index),
    )


def _plain(folder: Path, size: int) -> float:
    """Send a file of that many bytes to another process, which writes and syncs it. Return MB per second."""
    source, target = folder / "plain-source", folder / "plain-target"
    with source.open("wb") as file:
        for _ in range(0, size, _CHUNK):
            file.write(os.urandom(_CHUNK))
        file.truncate(size)
        os.fsync(file.fileno())
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(CALL_S)
        sender = multiprocessing.get_context("spawn").Process(target=_send, args=(source, listening.getsockname()))
        sender.start()
        connection, _ = listening.accept()
        with connection, target.open("wb", buffering=0) as file:
            buffer = memoryview(bytearray(_CHUNK))
            began = time.perf_counter()
            while got := connection.recv_into(buffer):
                file.write(buffer[:got])
            os.fsync(file.fileno())
            spent = time.perf_counter() - began
        sender.join()
    assert target.stat().st_size == size, "the plain file is not whole"
    source.unlink()
    target.unlink()
    return size / 1e6 / spent


def _send(path: Path, address: tuple[str, int]) -> None:
    with socket.create_connection(address) as connection, path.open("rb") as file:
        connection.sendfile(file)
