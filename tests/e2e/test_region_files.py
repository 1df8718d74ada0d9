"""Files of regions in trouble: other directories, lost, damaged, full disks."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from regions import messages as ms
from regions.records.model import RegionRecord
from regionserver.client import Change, DataError, RegionClient, connect
from tests.e2e.masters import Cluster, cluster_on, own_store
from tests.support.helpers import PATIENCE_S, eventually, finished, rk

pytestmark = pytest.mark.e2e

TABLE = "rows"
SPLITS = ["b", "c", "d", "e", "f"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Return one master, two servers and a table of six regions with a row each."""
    folder = tmp_path_factory.mktemp("data")
    with (
        own_store(folder / "store", 1) as hosts,
        cluster_on(hosts, folder / "cluster", masters=1, servers=2, options=["--attempts-max", "3"]) as running,
    ):
        active = running.wait_active()
        running.wait_servers(2)
        running.ask(active, ms.CreateTable(TABLE, SPLITS, wait_ms=60_000), ms.Tables)
        with connect(hosts, connect_timeout_s=PATIENCE_S, timeout_s=PATIENCE_S) as client:
            for key in "abcdef":
                client.put(TABLE, key, key.encode())
        yield running


@pytest.fixture
def client(cluster: Cluster) -> Iterator[RegionClient]:
    with connect(cluster.hosts, connect_timeout_s=PATIENCE_S, timeout_s=PATIENCE_S) as made:
        yield made


def region_of(cluster: Cluster, key: str) -> RegionRecord:
    [found] = [region for region in cluster.regions() if region.contains(key)]
    return found


def folder_of(cluster: Cluster, region: RegionRecord) -> Path:
    return cluster.folder / "shared" / "regions" / region.table_id / region.region_id


def said(cluster: Cluster, *words: str) -> str:
    """Return the output of a command of rk, with any exit status."""
    command = rk(*words, "--store", cluster.hosts)
    return finished(command, 120).stdout


def parked(cluster: Cluster, region: RegionRecord) -> str:
    """Wait until a region is parked. Return the reason."""

    def found() -> str:
        mine = [one for one in cluster.transitions() if one.region_id == region.region_id]
        # The client may learn of the damage before the master has begun to close the region.
        assert [one.parked for one in mine] == [True], mine
        return mine[0].last_error

    return eventually(found, 2 * PATIENCE_S, "the region parked")


def test_a_server_with_another_shared_directory_does_not_register(cluster: Cluster, tmp_path: Path) -> None:
    """The server ends with status 1 and one sentence; the cluster continues. The directory's id is in the store."""
    for name, reason in (("other", "has no directory.json"), ("theirs", "is directory")):
        shared = tmp_path / name
        if name == "theirs":
            shared.mkdir()
            text = (cluster.folder / "shared" / "directory.json").read_text()
            (shared / "directory.json").write_text(text.replace('"directory_id":"', '"directory_id":"x'))
        command = rk(
            "server", "run", "--store", cluster.hosts, "--data-dir", str(tmp_path / "data"),
            "--shared-dir", str(shared), "--address", "127.0.0.1:0",
        )  # fmt: skip
        ended = finished(command, PATIENCE_S)
        assert ended.returncode == 1
        assert reason in ended.stderr
        assert "nothing was registered" in ended.stderr
        assert "Traceback" not in ended.stderr
    assert cluster.status().servers == 2


def test_a_region_without_its_directory_is_parked(cluster: Cluster, client: RegionClient) -> None:
    """The directory is deleted under the cluster: no server makes an empty region of it. After it is restored, the
    region works."""
    region = region_of(cluster, "a")
    folder = folder_of(cluster, region)
    away = folder.with_name("away")
    cluster.ask_active(ms.SetRegionIntent(region.region_id, assigned=False, wait_ms=60_000), ms.Accepted)
    folder.rename(away)
    cluster.ask_active(ms.SetRegionIntent(region.region_id, assigned=True), ms.Accepted)
    assert "does not exist, but server" in parked(cluster, region)
    assert not folder.exists()
    assert "does not exist" in said(cluster, "why", f"{TABLE}:a")
    assert "does not exist" in said(cluster, "fsck")
    away.rename(folder)
    cluster.ask_active(ms.RetryRegion(region.region_id, 0), ms.Accepted)
    cluster.wait_settled()
    assert client.get(TABLE, "a") == b"a"


def test_an_older_directory_is_refused(cluster: Cluster, client: RegionClient) -> None:
    """A copy from before the latest open replaces the directory."""
    region = region_of(cluster, "b")
    folder = folder_of(cluster, region)
    copy, newer = folder.with_name("copy"), folder.with_name("newer")
    shutil.copytree(folder, copy)
    cluster.ask_active(ms.MoveRegion(region.region_id, wait_ms=60_000), ms.Accepted)
    client.put(TABLE, "b", b"new")
    cluster.ask_active(ms.SetRegionIntent(region.region_id, assigned=False, wait_ms=60_000), ms.Accepted)
    folder.rename(newer)
    copy.rename(folder)
    cluster.ask_active(ms.SetRegionIntent(region.region_id, assigned=True), ms.Accepted)
    assert "is older than the region" in parked(cluster, region)
    shutil.rmtree(folder)
    newer.rename(folder)
    cluster.ask_active(ms.RetryRegion(region.region_id, 0), ms.Accepted)
    cluster.wait_settled()
    assert client.get(TABLE, "b") == b"new"


def test_a_volume_that_comes_back_late(cluster: Cluster, client: RegionClient) -> None:
    """All servers start again while the volume is not mounted: they end. After it is mounted, every row is there."""
    shared = cluster.folder / "shared"
    for server in cluster.servers:
        assert server.terminate() == 0
    away = shared.with_name("volume")
    shared.rename(away)
    for server in cluster.servers:
        server.start()
        assert server.popen is not None
        assert server.popen.wait(PATIENCE_S) == 1
        assert "has no directory.json" in server.log.read_text()
        server.kill()
    shutil.rmtree(shared)
    away.rename(shared)
    for server in cluster.servers:
        server.start()
    cluster.wait_servers(2)
    cluster.wait_settled()
    assert [client.get(TABLE, key) for key in "acdef"] == [key.encode() for key in "acdef"]


def unassigned(cluster: Cluster, region: RegionRecord) -> Path:
    """Have a region closed. Return its file of rows."""
    cluster.ask_active(ms.SetRegionIntent(region.region_id, assigned=False, wait_ms=60_000), ms.Accepted)
    [path] = folder_of(cluster, region).glob("rows-*.mdb")
    return path


def assign(cluster: Cluster, region: RegionRecord) -> None:
    cluster.ask_active(ms.SetRegionIntent(region.region_id, assigned=True), ms.Accepted)


def mended(cluster: Cluster, region: RegionRecord) -> None:
    cluster.ask_active(ms.RetryRegion(region.region_id, 0), ms.Accepted)
    cluster.wait_settled()


def pids(cluster: Cluster) -> list[int]:
    return [server.popen.pid for server in cluster.servers if server.popen is not None]


def alive(cluster: Cluster) -> bool:
    return all(server.popen is not None and server.popen.poll() is None for server in cluster.servers)


def test_a_file_cut_short_ends_no_server(cluster: Cluster, client: RegionClient) -> None:
    """The open fails, and the region is parked with the reason. Earlier, each server that read the file died by
    SIGBUS."""
    region = region_of(cluster, "c")
    client.write(TABLE, [Change(f"c{number:04}", bytes(1000)) for number in range(300)])
    path = unassigned(cluster, region)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assign(cluster, region)
    assert "is truncated" in parked(cluster, region)
    assert alive(cluster)
    path.write_bytes(whole)
    mended(cluster, region)
    assert len(list(client.scan(TABLE, "c", "d"))) == 301


def test_a_damaged_row_parks_its_region(cluster: Cluster, client: RegionClient) -> None:
    """The row is never served: the region is closed with an alarm; why, audit and fsck name the fault. After the repair
    the region serves."""
    region = region_of(cluster, "d")
    client.put(TABLE, "d-balance", b"100 coins")
    path = unassigned(cluster, region)
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"100 coins", b"900 coins"))
    assign(cluster, region)
    cluster.wait_settled()
    with pytest.raises(DataError, match="damaged"):
        client.get(TABLE, "d-balance", timeout_s=10)
    reason = "row 'd-balance' is damaged"
    assert reason in parked(cluster, region)
    for words in (("why", f"{TABLE}:d"), ("fsck",)):
        assert reason in said(cluster, *words)
    eventually(lambda: reason in said(cluster, "audit"), PATIENCE_S, "an alarm")
    assert alive(cluster)
    path.write_bytes(whole)
    mended(cluster, region)
    assert client.get(TABLE, "d-balance") == b"100 coins"


def test_fsck_reads_every_row_on_request(cluster: Cluster, client: RegionClient) -> None:
    """Without --deep a damaged row that no client reads is not noticed. With --deep each damaged row is named, and the
    region stays open."""
    region = region_of(cluster, "e")
    client.write(TABLE, [Change(f"e{number:04}", f"value {number:04}".encode()) for number in range(7000)])
    path = unassigned(cluster, region)
    whole = path.read_bytes()
    assert whole.count(b"value 0042") == whole.count(b"value 6999") == 1
    path.write_bytes(whole.replace(b"value 0042", b"value 0043").replace(b"value 6999", b"value 7000"))
    assign(cluster, region)
    cluster.wait_settled()
    assert "nothing is wrong" in said(cluster, "fsck")
    shown = said(cluster, "fsck", "--deep", "--rate", "0")
    assert "has 2 damaged rows: 'e0042', 'e6999'" in shown
    assert "of 6 regions" in shown
    found = json.loads(said(cluster, "fsck", "--deep", "--json"))["deep"]
    assert (found["damaged_rows"], found["unread"], found["unchecked_rows"]) == (2, [], 0)
    assert found["rows"] > 7000
    assert client.get(TABLE, "e0001") == b"value 0001"
    unassigned(cluster, region)
    path.write_bytes(whole)
    assign(cluster, region)
    cluster.wait_settled()
    assert "damaged" not in said(cluster, "fsck", "--deep")


def test_a_full_disk_ends_no_server(tmp_path: Path) -> None:
    """Regions with and without files on a disk that fills: every write is done, or rejected with the reason."""
    shared = tmp_path / "cluster" / "shared"
    shared.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(shared)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small file system needs root")
    try:
        with (
            own_store(tmp_path / "store", 1) as hosts,
            cluster_on(hosts, tmp_path / "cluster", masters=1, servers=1) as cluster,
        ):
            active = cluster.wait_active()
            cluster.wait_servers(1)
            cluster.ask(active, ms.CreateTable(TABLE, SPLITS, wait_ms=60_000), ms.Tables)
            with connect(hosts, connect_timeout_s=PATIENCE_S, timeout_s=PATIENCE_S) as client:
                client.put(TABLE, "a", b"1")
                fill(shared)
                refused = []
                for key in "abcdef":
                    for size in (1, 100_000):
                        try:
                            client.put(TABLE, f"{key}{size}", bytes(size))
                        except DataError as error:
                            refused.append(str(error))
                assert len(refused) >= 6
                assert all("No space left on device" in one for one in refused), refused
                assert alive(cluster)
                (shared / "filler").unlink()
                for key in "abcdef":
                    client.put(TABLE, f"{key}-again", b"2")
                assert client.get(TABLE, "a") == b"1"
                assert alive(cluster)
    finally:
        subprocess.run(["umount", "-l", str(shared)], check=False)


def fill(folder: Path) -> None:
    """Use all free room of the file system of `folder`."""
    with (folder / "filler").open("wb", buffering=0) as filler:
        for size in (1 << 16, 1 << 12, 1 << 9):
            while True:
                try:
                    if not filler.write(bytes(size)):
                        break
                except OSError:
                    break
