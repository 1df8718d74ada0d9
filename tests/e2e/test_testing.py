"""The fixtures for tests of services (`regionserver.testing`), as a stranger uses them. No process is left."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from regionserver.testing import ClusterFailedError, ServerPlace, SmallCluster, rk_server
from tests.support.helpers import eventually

pytestmark = pytest.mark.e2e
pytest_plugins = ["regionserver.testing.fixtures"]
ROOT = Path(__file__).parents[2]


def processes_below(folder: Path) -> list[str]:
    """Return the command lines of running processes that name the folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                words = (entry / "cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if str(folder) in words:
                found.append(words.replace("\0", " "))
    return found


def test_a_cluster_serves_survives_deaths_and_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    with SmallCluster(folder, servers=2, masters=2) as cluster:
        cluster.create_table("rows", splits=["m"])
        assert sorted(cluster.owners("rows").values(), key=str) == [0, 1]
        with cluster.connect() as client:
            client.put("rows", "a", b"1")
            client.put("rows", "z", b"2")
            cluster.kill_server(1)
            assert (client.get("rows", "a"), client.get("rows", "z")) == (b"1", b"2")
            # The client may have found both regions before the last record of a location is written.
            eventually(lambda: set(cluster.owners("rows").values()) == {0}, what="the records name the living server")
            cluster.kill_master(0)
            cluster.start_server(1)
            cluster.wait_open("rows")
        assert len(processes_below(folder)) >= 4
    assert processes_below(folder) == []


def test_the_fixture_is_ready(regionkeeper_cluster: SmallCluster) -> None:
    regionkeeper_cluster.create_table("rows")
    with regionkeeper_cluster.connect() as client:
        client.put("rows", "k", b"v")
        assert client.get("rows", "k") == b"v"


def test_a_server_that_does_not_start_is_shown_with_its_log(tmp_path: Path) -> None:
    def broken(place: ServerPlace) -> list[str]:
        return [*rk_server(place), "--no-such-option"]

    cluster = SmallCluster(tmp_path / "c", server=broken, servers=1)
    with pytest.raises(ClusterFailedError, match=r"(?s)server-0 has ended with status 2.*No such option"), cluster:
        pass
    assert processes_below(tmp_path) == []


def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="is not empty"), SmallCluster(tmp_path):
        pass
    with pytest.raises(ValueError, match="at least one master"):
        SmallCluster(tmp_path, masters=0)


def test_the_examples_own_test_passes(tmp_path: Path) -> None:
    """In a pytest of its own, outside of our suite, with the plugin named by the test's module."""
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path)]
    done = subprocess.run(
        [*words, "-c", os.devnull, str(ROOT / "examples" / "test_counters.py")],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert "1 passed" in done.stdout
