"""One region's file: durable rows, growth, handover, and an old owner that continues to write in another process."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from coord.rpc.wire import RpcError
from regions.messages.heartbeat import Measure
from regions.records.model import Incarnation
from regionserver.kv import files as files_module
from regionserver.kv.files import Environments, RegionFile
from regionserver.kv.layout import MARKER
from regionserver.kv.messages import PAGE_BYTES_MAX, REGION_FULL
from regionserver.opener import RegionError
from regionserver.request_gate import FENCED, NOT_SERVING
from regionserver.storage.ownership import Owner, acquire

ROOT = Path(__file__).resolve().parents[4]
NOBODY = Incarnation("nobody", 0)


def allowed() -> None:
    """Return True: the lease holds."""


def opened(
    folder: Path,
    token: int = 5,
    evict: Incarnation | None = None,
    environments: Environments | None = None,
    **options: int,
) -> RegionFile:
    """Open a region as a server does."""
    folder.mkdir(exist_ok=True)
    hold = acquire(str(folder), Owner(f"server-{token}", 1, 1, token), evict)
    made = RegionFile(hold, Environments() if environments is None else environments, **options)
    try:
        made.recover(lambda: None)
    except BaseException:
        hold.release()
        raise
    return made


def closed(file: RegionFile) -> None:
    file.close()
    file.lock.release()


def values(file: RegionFile, *keys: str) -> list[bytes | None]:
    with file.reading() as snapshot:
        return snapshot.values(key.encode() for key in keys)


def put(file: RegionFile, **rows: str) -> None:
    file.write([(key.encode(), value.encode()) for key, value in rows.items()], allowed)


def rows_files(folder: Path) -> list[str]:
    """Return the files of rows in a region's directory. Without any file there must be no mark either."""
    names = {path.name for path in folder.glob("*.mdb")}
    assert (MARKER in names) == any(name.startswith("rows-") for name in names)
    return sorted(names - {MARKER})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "region"


def test_rows_outlive_the_opening(folder: Path) -> None:
    """The file is closed and opened by another server."""
    first = opened(folder)
    assert values(first, "a") == [None]
    put(first, a="1", b="2")
    first.write([(b"a", None)], allowed)
    closed(first)
    second = opened(folder, token=6)
    assert values(second, "a", "b") == [None, b"2"]
    put(second, a="3")
    assert rows_files(folder) == ["rows-5.mdb"]
    closed(second)


def test_a_region_that_was_never_written_has_no_file(folder: Path) -> None:
    """Opening thousands of regions creates no LMDB environments."""
    environments = Environments()
    file = opened(folder, environments=environments)
    assert values(file, "a") == [None]
    with file.reading() as snapshot:
        assert snapshot.page(b"", b"", 10) == ([], "")
    assert len(environments) == 0
    assert rows_files(folder) == []
    closed(file)


def test_a_full_map_grows(folder: Path) -> None:
    """The write that finds the map full is done once, in the larger map."""
    file = opened(folder, map_bytes=64 * 1024)
    for number in range(40):
        file.write([(b"%02d" % number, bytes(8000))], allowed)
    with file.reading() as snapshot:
        assert len(snapshot.values([b"%02d" % number for number in range(40)])) == 40
    assert (folder / "rows-5.mdb").stat().st_size > 64 * 1024
    closed(file)
    again = opened(folder, token=6, map_bytes=64 * 1024)
    again.write([(b"new", bytes(8000))], allowed)
    closed(again)


def test_growth_waits_for_readers_and_holds_none_up(folder: Path) -> None:
    """No transaction may be open while the map is replaced."""
    file = opened(folder, map_bytes=64 * 1024)
    put(file, a="1")
    reading, finished = threading.Event(), threading.Event()

    def read() -> None:
        with file.reading() as snapshot:
            reading.set()
            assert finished.wait(60)
            assert snapshot.values([b"a"]) == [b"1"]

    def write() -> None:
        for number in range(40):
            file.write([(b"%02d" % number, bytes(8000))], allowed)

    reader, writer = threading.Thread(target=read), threading.Thread(target=write)
    reader.start()
    assert reading.wait(60)
    writer.start()
    finished.set()
    for thread in (reader, writer):
        thread.join(60)
        assert not thread.is_alive()
    closed(file)


def test_growth_ends_at_its_limit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """REGION_BYTES_MAX: the write is rejected as a whole; the region can still be read."""
    monkeypatch.setattr(files_module, "REGION_BYTES_MAX", 128 * 1024)
    file = opened(folder, map_bytes=64 * 1024)
    put(file, a="1")
    with pytest.raises(RpcError) as caught:
        file.write([(b"big", bytes(200_000)), (b"a", b"2")], allowed)
    assert caught.value.code == REGION_FULL
    assert values(file, "a", "big") == [b"1", None]
    closed(file)


def test_pages_end_at_their_limits(folder: Path) -> None:
    """Rows and bytes: the page names the start of the next one."""
    file = opened(folder)
    file.write([(b"%02d" % number, bytes(PAGE_BYTES_MAX // 4)) for number in range(10)], allowed)
    with file.reading() as snapshot:
        rows, following = snapshot.page(b"", b"", 3)
        assert ([row.key for row in rows], following) == (["00", "01", "02"], "03")
        rows, following = snapshot.page(b"03", b"", 1000)
        assert ([row.key for row in rows], following) == (["03", "04", "05", "06"], "07")
        rows, following = snapshot.page(b"07", b"09", 1000)
        assert ([row.key for row in rows], following) == (["07", "08"], "")
        assert len(snapshot.values([b"00", b"01", b"02", b"03", b"04", b"05"])) == 4
    closed(file)


def test_environments_that_are_not_used_are_closed(folder: Path, tmp_path: Path) -> None:
    """Beyond the limit the least recently used environment is closed; it is opened again when needed."""
    environments = Environments(most=2)
    files = [opened(tmp_path / f"r{number}", environments=environments) for number in range(4)]
    for number, file in enumerate(files):
        put(file, a=str(number))
        assert len(environments) <= 2
    assert [values(file, "a") for file in files] == [[b"0"], [b"1"], [b"2"], [b"3"]]
    for file in files:
        closed(file)
    assert len(environments) == 0


def test_close_waits_for_requests_and_refuses_later_ones(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After `close` another server may open the region: no request of ours may be in progress."""
    monkeypatch.setattr(files_module, "CLOSE_WITHIN_S", 0.01)
    file = opened(folder)
    put(file, a="1")
    with file.reading(), pytest.raises(RegionError, match="still in progress"):
        file.close()
    closed(file)
    with pytest.raises(RpcError) as caught:
        values(file, "a")
    assert caught.value.code == NOT_SERVING


def test_without_a_lease_nothing_is_committed(folder: Path) -> None:
    """The lease is checked with the transaction open."""
    file = opened(folder)
    put(file, a="1")

    def lapsed() -> None:
        raise RpcError("no_lease", "")

    with pytest.raises(RpcError, match="no_lease"):
        file.write([(b"a", b"2")], lapsed)
    assert values(file, "a") == [b"1"]
    closed(file)


def test_an_overtaken_owner_commits_nothing_more(folder: Path) -> None:
    """With a later mark the write is rejected before the commit; with a mark that appears meanwhile it is not
    acknowledged."""
    old = opened(folder)
    put(old, a="1")

    def overtaken() -> None:
        with contextlib.closing(_Released(folder, 6)):
            pass

    with pytest.raises(RpcError) as caught:
        old.write([(b"a", b"2")], overtaken)
    assert caught.value.code == NOT_SERVING
    (folder / "owner-6").unlink()
    old._is_newest = iter([True, False]).__next__  # type: ignore[method-assign]
    with pytest.raises(RpcError) as caught:
        old.write([(b"a", b"3")], allowed)
    assert caught.value.code == FENCED
    closed(old)


class _Released:
    """A later server's mark, without a lock."""

    def __init__(self, folder: Path, token: int) -> None:
        (folder / f"owner-{token}").write_text("")

    def close(self) -> None:
        """Do nothing."""


def test_an_invalid_file_fails_the_open(folder: Path) -> None:
    """X11: OPENED means that the file was checked; the reason names it."""
    folder.mkdir()
    (folder / "data-3.mdb").write_bytes(b"\0" * 8192)
    with pytest.raises(RegionError, match=r"data-3\.mdb is not a region's file"):
        opened(folder)
    (folder / "data-3.mdb").unlink()
    (folder / "data-9.mdb").write_bytes(b"")
    with pytest.raises(RegionError, match="later opening"):
        opened(folder, token=6)


_OWNER: str = """
import sys
from regionserver.kv.files import Environments, RegionFile
from regionserver.storage.ownership import Owner, acquire
from coord.rpc.wire import RpcError
hold = acquire(sys.argv[1], Owner("old", 1, 1, 10), None)
file = RegionFile(hold, Environments())
file.recover(lambda: None)
number = 0
while True:
    number += 1
    try:
        file.write([(b"n", b"%d" % number), (b"row-%d" % (number % 500), b"x" * (number % 3000))], lambda: None)
    except RpcError as error:
        print(error.code, flush=True)
        break
    print(number, flush=True)
"""


@contextlib.contextmanager
def old_owner(folder: Path) -> Iterator[subprocess.Popen[str]]:
    folder.mkdir()
    command = [sys.executable, "-c", _OWNER, str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env={"PYTHONPATH": str(ROOT)})
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.mark.parametrize("acknowledged", [1, 40])
@pytest.mark.parametrize("is_frozen", [True, False], ids=["frozen", "slow"])
def test_an_old_owners_acknowledged_writes_stay_and_no_later_ones_appear(
    folder: Path, acknowledged: int, is_frozen: bool
) -> None:
    """A process is stopped amid its commits; the region is opened elsewhere and written; the process continues. Also
    for a process that is not frozen and writes while its rows are copied."""
    with old_owner(folder) as process:
        assert process.stdout is not None
        last = 0
        while last < acknowledged:
            last = int(process.stdout.readline())
        if is_frozen:
            process.send_signal(signal.SIGSTOP)
        new = opened(folder, token=20, evict=Incarnation("old", 1))
        found = int(values(new, "n")[0] or b"0")
        put(new, n="new")
        if is_frozen:
            process.send_signal(signal.SIGCONT)
        rest = process.stdout.read().split()
        assert process.wait(60) == 0
        assert rest[-1] in (NOT_SERVING, FENCED)
        last = max([last, *map(int, rest[:-1])])
        assert last <= found <= last + 1
        assert values(new, "n") == [b"new"]
        with new.reading() as snapshot:
            rows, _ = snapshot.page(b"row-", b"", 1000)
        assert len(rows) == min(found, 500)
        closed(new)
        assert rows_files(folder) == ["rows-20.mdb"]
    again = opened(folder, token=21)
    assert values(again, "n") == [b"new"]
    closed(again)


def test_a_killed_owner_leaves_its_file_to_the_next(folder: Path) -> None:
    """SIGKILL amid commits: no eviction, no copy, and no acknowledged write is lost."""
    with old_owner(folder) as process:
        assert process.stdout is not None
        last = 0
        while last < 20:
            last = int(process.stdout.readline())
        process.kill()
        process.wait()
        lines = process.stdout.read().split("\n")
        last = max([last, *(int(line) for line in lines[:-1])])
    new = opened(folder, token=20)
    assert not new.lock.has_evicted
    assert last <= int(values(new, "n")[0] or b"0") <= last + 1
    put(new, n="new")
    closed(new)


def test_a_region_is_measured_when_it_is_opened_and_after_every_commit(tmp_path: Path) -> None:
    """An opening counts nothing: LMDB's meta page has the figures."""
    found: list[Measure] = []

    def reopened(token: int) -> RegionFile:
        (tmp_path / "r").mkdir(exist_ok=True)
        file = RegionFile(
            acquire(str(tmp_path / "r"), Owner("s", 1, 1, token), None), Environments(), measured=found.append
        )
        file.recover(lambda: None)
        return file

    file = reopened(5)
    assert found == [Measure(0, 0)]
    for number in range(100):
        put(file, **{f"key-{number}": "v" * 200})
    assert [one.rows for one in found] == list(range(101))
    assert 20_000 < found[-1].size_bytes < 60_000
    closed(file)
    before = found[-1]
    file = reopened(6)
    assert found[-1] == before
    file.write([(f"key-{number}".encode(), None) for number in range(100)], allowed)
    assert found[-1] == Measure(0, 0)
    closed(file)
