"""An incident week, as the operator reads it (B1 to B13 of OPERATORS.md): one cluster of `rk up`, real commands, their
output and exit status. Each case leaves the cluster healthy.

Elsewhere: B3, B8 and B11 for `rk health`, `rk coord status` and `rk why` in `test_cluster_health.py`; the removal of
rows after their time (B12) in `test_purging.py`; backups under writes and the loss of everything (B13) in
`test_backup.py`.
"""

from __future__ import annotations

import contextlib
import doctest
import fcntl
import json
import os
import pty
import re
import select
import shutil
import struct
import subprocess
import tarfile
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from cli.common.local import CERTS_DIR, SUPER_FILE
from tests.e2e.clusters import LocalUp, free_base_port, local_up, run_rk
from tests.e2e.test_cluster_health import frozen
from tests.support.helpers import PATIENCE_S, eventually, rk

pytestmark = pytest.mark.e2e

SHAPE: Final = ("--store-nodes", "3", "--masters", "2", "--servers", "3", "--no-table")
#: Opens of a region that may fail before it is parked.
ATTEMPTS: Final = "2"


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalUp]:
    """Yield a cluster with one table of six shared regions and two rows."""
    data_dir = tmp_path_factory.mktemp("incidents") / "rk-data"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RK_MASTER_RUN_ATTEMPTS_MAX", ATTEMPTS)
        patch.setenv("COLUMNS", "200")
        with local_up(data_dir, "--base-port", str(free_base_port()), *SHAPE) as found:
            found.event("up")
            told(found, "table create orders --replicas 1 --split b --split c --split d --split e --split f")
            told(found, "put orders apple 1", "put orders dog 2")
            yield found


def told(up: LocalUp, *lines: str, status: int = 0, where: str = "") -> str:
    """Run commands, given as the operator types them, and return what they print; all must end with `status`."""
    found = []
    for line in lines:
        done = run_rk(*line.split(), *(where or f"--data-dir {up.data_dir}").split())
        assert done.returncode == status, f"rk {line}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        # After a second a command prints what it waits for, so this output depends on the machine.
        found += [one for one in (done.stdout + done.stderr).splitlines(True) if not one.startswith("rk: waiting for")]
    return "".join(found)


def reads(said: str, expected: str) -> None:
    """Compare the output with a transcript, in which `...` stands for any text, and any number of spaces is equal."""
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    assert doctest.OutputChecker().check_output(expected.strip() + "\n", said.strip() + "\n", flags), said


def comes_to_read(up: LocalUp, line: str, expected: str, status: int = 0) -> None:
    """Wait until a command ends with this output. On a busy machine a probe with a limit of a second may get no answer,
    so a node that serves no client may be silent once and report its state the next time."""

    def does() -> bool:
        reads(told(up, line, status=status), expected)
        return True

    eventually(does, what=f"rk {line} reads so")


def healthy(up: LocalUp) -> None:
    """Wait until nothing is amiss."""
    eventually(lambda: run_rk("health", "--data-dir", str(up.data_dir)).returncode == 0, what="the cluster is healthy")


def test_a_disabled_table_is_refused_at_once_and_the_runs_keep_their_past(up: LocalUp) -> None:
    """B10: not an outage, and a status of its own. B5: the report of a startup is not changed by a table command."""
    before = told(up, "runs")
    told(up, "table disable orders")
    for command in ("get orders apple", "put orders apple 3", "scan orders"):
        said = told(up, f"{command} --timeout 60", status=1)
        reads(said, "rk: table 'orders' is disabled\n`rk table enable orders` opens it.")
    told(up, "table enable orders")
    assert told(up, "get orders apple") == "1\n"
    assert before == told(up, "runs")


def test_sizes_are_those_of_the_rows(up: LocalUp) -> None:
    """B4: the sizes are measured, not planned; an empty region has size 0."""

    def measured() -> bool:
        [table] = json.loads(told(up, "table list --json"))
        return bool(table["rows"] == 2 and table["size_bytes"] > 0)

    eventually(measured, what="the servers have reported the two rows")
    reads(
        told(up, "region list --table orders"),
        """
        orders  6 regions
        region    keys      rows  size    replica  state  server  transition
        ...0000  [-∞, b)    1  ... kB  0  open  server-...
        ...0001  [b, c)     0  0 B     0  open  server-...
        ...0002  [c, d)     0  0 B     0  open  server-...
        ...0003  [d, e)     1  ... kB  0  open  server-...
        ...0004  [e, f)     0  0 B     0  open  server-...
        ...0005  [f, +∞)    0  0 B     0  open  server-...
    """,
    )


def test_a_fenced_live_server_gets_nothing_back(up: LocalUp) -> None:
    """B6, B9, B11: its regions stay elsewhere; `rk why` shows this; the history has the time of the request and its
    user."""
    said = told(up, "server fence server-2 --yes")
    reads(said, "server-2 is fenced until `rk server unfence`; of its 2 replicas, ... on server-...")
    told(up, "balance run")
    reads(
        told(up, "why server-2"),
        """
        region server server-2  127.0.0.1:...  fenced
          0 regions open, 0 coming, 0 going, ...
          it was fenced (requested by an operator) and gets no regions until `rk server unfence`
          what helps: rk server unfence server-2
    """,
    )
    reads(
        told(up, "health", status=1),
        """
        DEGRADED
          server-2 is fenced
          ...
        answered: 3 of 3 store nodes, 2 of 2 masters, 3 of 3 region servers
        1 table, 6 regions
    """,
    )
    told(up, "server unfence server-2")
    healthy(up)
    past = eventually(lambda: told(up, "history --since 10m"), what="the history")
    [fenced] = [line for line in past.splitlines() if ": fence server" in line]
    reads(fenced, "20...-...-... ...:...:...+0000  ** user:admin at 127.0.0.1:...: fence server server-2 ...")


def test_masters_that_are_frozen(up: LocalUp) -> None:
    """B2: a figure that no process reports is unknown, not 0; clients are served; the monitor's status is not 0."""
    with frozen(up, "master-1", "master-2"):
        said = told(up, "status")
        # After their sessions have ended, the masters are down; until then they do not answer.
        assert len(re.findall(r"^master-\d +\S+:\d+ .*(?:does not answer|down) *$", said, re.MULTILINE)) == 2
        reads(
            said,
            """
            store ...
            master    address  role  epoch  mirror
            master-1  127.0.0.1:...
            master-2  127.0.0.1:...
            server    address          state  kind  rack    open  data  coming  going
            server-1  127.0.0.1:...  up  kv/1  rack-1  ?  ?  ?  ?
            server-2  127.0.0.1:...  up  kv/1  rack-1  ?  ?  ?  ?
            server-3  127.0.0.1:...  up  kv/1  rack-1  ?  ?  ?  ?...
            no master is active after ...: tables and counts are unknown
        """,
        )
        assert told(up, "get orders apple") == "1\n"
        assert "no master is active: nothing is assigned" in told(up, "health", status=1)
    healthy(up)


def test_a_store_without_a_majority(up: LocalUp, tmp_path: Path) -> None:
    """B3: the living node is not taken for the broken one, and the wait ends when it was told to."""
    with frozen(up, "store-1", "store-2"):
        # A follower keeps its role until it has received no message from the leader for an election timeout.
        comes_to_read(
            up,
            "status --timeout 12",
            """
            ...
            store-1  127.0.0.1:...  silent
            store-2  127.0.0.1:...  silent
            store-3  127.0.0.1:...  not serving
            master    address  role  epoch  mirror
            master-1  127.0.0.1:...
            master-2  127.0.0.1:...
            server    address          state  kind  rack    open  data  coming  going
            server-1  127.0.0.1:...  up  ?  ?  ?  ?
            server-2  127.0.0.1:...  up  ?  ?  ?  ?
            server-3  127.0.0.1:...  up  ?  ?  ?  ?
            the store does not answer: tables and counts are unknown
            rk: the store at ... accepts connections but gave no session within 6 s
                store-1 accepts connections and does not answer
                store-2 accepts connections and does not answer
                store-3 answers that it does not serve: it knows no leader
                A majority of its nodes must run. `rk health` asks every process.
        """,
            status=3,
        )
        for command in ("history", "get orders apple", "coord list", "table list"):
            comes_to_read(
                up,
                f"{command} --timeout 8",
                """
                rk: the store at ... accepts connections but gave no session within 8 s
                    store-1 accepts connections and does not answer
                    store-2 accepts connections and does not answer
                    store-3 answers that it does not serve: it knows no leader
                    A majority of its nodes must run. `rk health` asks every process.
            """,
                status=3,
            )
        comes_to_read(
            up,
            "health",
            """
            UNAVAILABLE
              the store has no leader: 0 of 3 nodes serve
              store node store-1 accepts connections and does not answer
              store node store-2 accepts connections and does not answer
              ...
        """,
            status=2,
        )
        bundled(up, tmp_path / "bundle.tgz")
    healthy(up)


def bundled(up: LocalUp, target: Path) -> None:
    """Check the bundle of a cluster whose store has no majority: all processes are in it, and no secret."""
    told(up, f"debug bundle --output {target} --timeout 20")
    with tarfile.open(target) as archive:
        texts = {one.name.partition("/")[2]: archive.extractfile(one).read().decode() for one in archive}  # type: ignore[union-attr]
    assert "T (stopped)" in texts["processes/store-1/process.txt"]
    assert "processes/store-1/srvr.txt: " in texts["summary.txt"]
    assert json.loads(texts["processes/store-3/status.json"])["serving"] is False
    for name in ("master-1", "master-2", "server-1", "server-2", "server-3"):
        assert {f"processes/{name}/{page}" for page in ("status.json", "health.json", "metrics.txt")} < set(texts)
    key = json.loads((up.data_dir / CERTS_DIR / "user.admin.json").read_text())["key"]
    secrets = (key, (up.data_dir / SUPER_FILE).read_text().strip())
    assert not any(secret in text for text in texts.values() for secret in secrets)


def test_one_address_of_the_store_is_enough(up: LocalUp, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """B8: the other nodes are found, and a follower that was named alone is not a store without a leader. Without
    a credential both commands say in one sentence what is missing. A bundle has every admin port's pages.

    Tried: without `registered_admins` the bundle has no page of a master.
    """
    healthy(up)  # regions that were ordered to open a moment ago are not open yet
    cluster = json.loads((up.data_dir / "cluster.json").read_text())
    addresses = [one["address"] for one in cluster["coord"]]
    for address in addresses:
        for command in ("status", "health"):
            said = told(up, command, where=f"--store {address}", status=1)
            assert f"rk: the store at {address} serves only clients that authenticate" in said
    monkeypatch.setenv("RK_CERTS_DIR", str(up.data_dir / CERTS_DIR))
    monkeypatch.setenv("RK_STORE_AUTH", f"@{up.data_dir / SUPER_FILE}")
    found = json.loads(told(up, "status --json", where=f"--store {addresses[0]}"))
    assert sorted(one["address"] for one in found["store"]) == addresses
    for address in addresses:
        assert told(up, "health", where=f"--store {address}").startswith("HEALTHY")
    admins = ",".join(one["admin"] for one in cluster["coord"])
    target = tmp_path / "bundle.tgz"
    told(up, f"debug bundle --output {target} --timeout 30 --admin {admins}", where=f"--store {','.join(addresses)}")
    with tarfile.open(target) as archive:
        found = {one.name.partition("/")[2] for one in archive}
    for kind in ("coord", "masters", "servers"):  # masters and servers by their records in the store
        for one in cluster[kind]:
            folder = f"processes/{one['address'].replace(':', '_')}"
            assert {f"{folder}/{page}" for page in ("status.json", "health.json", "ready.json", "metrics.txt")} <= found


def test_a_region_that_cannot_be_opened(up: LocalUp, tmp_path: Path) -> None:
    """B1, B7 and the pipe of table D: a parked region is on every screen with its error, and no status is 0."""
    [region] = [one for one in (up.data_dir / "shared" / "regions").glob("*/*.0003") if one.is_dir()]
    told(up, "region unassign orders:dog")
    shutil.move(region, tmp_path / "kept")
    error = f"{region} does not exist, but server server-... had this region open: ..."
    reads(
        told(up, "region assign orders:dog", status=1),
        f"""
        rk: {region.name} cannot be opened and is parked after {ATTEMPTS} attempts: {error}
            Remove the cause, then: rk region retry orders:dog
    """,
    )
    reads(
        told(up, "health", status=2),
        f"""
        UNAVAILABLE
          1 region is parked
          {region.name}-0 is parked after {ATTEMPTS} attempts: {error}
        answered: 3 of 3 store nodes, 2 of 2 masters, 3 of 3 region servers
        1 table, 6 regions
    """,
    )
    reads(
        told(up, "status --check", status=2),
        f"""
        ...
        orders  RUNNING  enabled  6  5  1  1 ...
        1 region in transition, 1 of them parked, oldest first:
        region  state  why  server  attempt  last error
        {region.name}-0  PARKED  ...
        ...
        UNAVAILABLE
          1 region is parked
        ...
    """,
    )
    reads(
        told(up, "fsck", status=1),
        f"""
        parked: {region.name}-0 is parked after {ATTEMPTS} attempts: {error}
            --fix would retry {region.name}-0: OFFLINE -> OFFLINE at version ...
        1 error
    """,
    )
    reads(
        told(up, "why orders:dog"),
        f"""
        orders {region.name} [d, e)
        PARKED: it is parked after {ATTEMPTS} failed attempts: {error}
          who acts next operator: remove the cause, then retry it
        ...
    """,
    )
    # In a pipe a row is one line, however long its error is.
    lines = told(up, "region list --table orders").splitlines()
    assert len(lines) == 8
    [parked] = [line for line in lines if line.startswith(region.name)]
    assert "PARKED" in parked
    assert "had this region open" in parked
    screen = live_screen(up)
    assert "1 in transition, 1 of them p" in screen
    assert "3 of 3 store nodes, leader store-" in screen
    assert "1 region is parked" in screen
    assert "1 do not fit the filter" in screen
    assert f"orders {region.name}"[:9] in screen
    assert "open failed" in screen
    shutil.move(tmp_path / "kept", region)
    told(up, "region retry orders:dog")
    healthy(up)
    assert told(up, "get orders dog") == "2\n"


def live_screen(up: LocalUp) -> str:
    """Return what `rk watch --live` shows in a terminal of 80 columns: with a region in transition and the verdict,
    then with a filter that hides the region. Keys end it."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"} | {"TERM": "xterm"}
    words = rk("watch", "--live", "--data-dir", str(up.data_dir))
    process = subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    seen = ""
    end_s = time.monotonic() + PATIENCE_S
    try:
        for awaited, keys in (("open failed", b"/no such region\r"), ("do not fit the filter", b"q")):
            while not (awaited in seen and "UNAVAILABLE" in seen) and time.monotonic() < end_s:
                if select.select([ours], [], [], 0.1)[0]:
                    with contextlib.suppress(OSError):
                        seen += os.read(ours, 65536).decode(errors="replace")
            os.write(ours, keys)
        assert process.wait(PATIENCE_S) == 0, "q ends it"
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    return seen


def test_a_deleted_table_is_in_a_list_and_comes_back(up: LocalUp) -> None:
    """B12: its rows do not vanish from every list while they are on the disk."""
    told(up, "table create gone --replicas 1", "put gone a 1")
    reads(told(up, "table delete gone --yes"), "table gone (...) is deleted, regions still open: 0...")
    assert "gone" in told(up, "table list --deleted")
    told(up, "table undelete gone")
    assert told(up, "get gone a") == "1\n"
    told(up, "table delete gone --yes")
    healthy(up)
