"""Damaged files of rows: truncated, changed, lost, of an earlier build; full disks."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import lmdb
import pytest

from coord.rpc.wire import RpcError
from regionserver.kv import files as files_module
from regionserver.kv import layout, pages, rows
from regionserver.kv.files import RegionFile
from regionserver.kv.layout import MARKER
from regionserver.kv.messages import DAMAGED, STORAGE
from regionserver.opener import RegionError
from tests.unit.regionserver.kv.test_files import ROOT, closed, opened, put, rows_files, values

#: Reads every row of a file like a server, by a map.
_READ_ALL = "import lmdb, sys; print(sum(1 for _ in lmdb.open(sys.argv[1], subdir=False, lock=False).begin().cursor()))"

#: Opens a region and reads its rows, until its pages kill the process.
_SERVE = """
import sys
from regionserver.kv.files import Environments, RegionFile
from regionserver.storage.ownership import Owner, acquire
file = RegionFile(acquire(sys.argv[1], Owner("s", 1, 1, int(sys.argv[2])), None), Environments())
file.recover(lambda: None)
with file.reading() as snapshot:
    print(len(snapshot.page(b"", b"", 1000)[0]))
import os, signal
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "region"


def filled(folder: Path, count: int = 400) -> Path:
    """Return a closed region with that many rows, and their file."""
    file = opened(folder)
    put(file, **{f"k{number:04}": f"value {number}" * 20 for number in range(count)})
    closed(file)
    return folder / "rows-5.mdb"


def legacy(folder: Path, content: dict[bytes, bytes], name: str = "data-3.mdb") -> Path:
    """Return a region as an earlier build left it."""
    folder.mkdir(exist_ok=True)
    with lmdb.open(str(folder / name), subdir=False) as env, env.begin(write=True) as transaction:
        for key, value in content.items():
            transaction.put(key, value)
    return folder / name


def page(file: RegionFile) -> list[str]:
    with file.reading() as snapshot:
        return [row.key for row in snapshot.page(b"", b"", 1000)[0]]


# --- length -----------------------------------------------------------------------------------------------------------


def test_a_file_cut_short_at_any_page_fails_the_open(folder: Path) -> None:
    """Never a process that dies by SIGBUS: a file that passes the check can be read completely by a separate
    process."""
    path = filled(folder)
    content = path.read_bytes()
    kept = []
    for length in [0, 1, 100, 4096, 5000, *range(8192, len(content), 4096), len(content) - 1]:
        path.write_bytes(content[:length])
        try:
            pages.check_whole(str(path))
        except pages.Damaged:
            continue
        kept.append(length)
    for length in kept:
        path.write_bytes(content[:length])
        command = [sys.executable, "-c", _READ_ALL, str(path)]
        assert subprocess.run(command, stdout=subprocess.PIPE, timeout=60, check=True).stdout == b"400\n"
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(RegionError, match="is truncated"):
        opened(folder, token=6)


def test_a_file_whose_last_pages_were_never_written_is_whole(tmp_path: Path) -> None:
    """LMDB omits pages that a transaction allocated and freed: the file is shorter than the meta page says."""
    short = 0
    chance = random.Random(23)  # Found by experiment: about one commit of 500 leaves such a file.
    path = str(tmp_path / "rows.mdb")
    with lmdb.open(path, subdir=False, map_size=1 << 28, sync=False) as env:
        for _ in range(14):
            with env.begin(write=True) as transaction:
                for _ in range(chance.choice((1, 5, 50, 300))):
                    key = b"%06d" % chance.randrange(2000)
                    if chance.random() < 0.5:
                        transaction.put(key, bytes(chance.choice((10, 100, 3000, 9000, 200_000))))
                    else:
                        transaction.delete(key)
            pages.check_whole(path)
            fd = os.open(path, os.O_RDONLY)
            meta = pages.latest_meta(fd, path, os.stat(path).st_size)
            os.close(fd)
            short += os.stat(path).st_size < (meta.last_page + 1) * meta.page_bytes
    assert short, "no file of this test is short: the walk was not tried"


# --- bytes ------------------------------------------------------------------------------------------------------------


def change(path: Path, old: bytes, new: bytes) -> None:
    content = path.read_bytes()
    assert content.count(old) == 1
    path.write_bytes(content.replace(old, new))


def test_a_changed_value_is_never_served(folder: Path) -> None:
    """100 coins do not become 900. The region serves nothing from then on, and reports the reason once."""
    file = opened(folder)
    put(file, a="1", b="100 coins", c="3")
    closed(file)
    change(folder / "rows-5.mdb", b"100 coins", b"900 coins")
    again = opened(folder, token=6)
    said: list[str] = []
    again._damaged = said.append
    assert values(again, "a") == [b"1"]
    for _ in range(2):
        with pytest.raises(RpcError, match="row 'b' is damaged") as caught:
            page(again)
        assert caught.value.code == DAMAGED
    for work in (lambda: values(again, "a"), lambda: put(again, d="4")):
        with pytest.raises(RpcError, match="row 'b' is damaged"):
            work()
    assert said == ["row 'b' is damaged: its checksum does not match"]
    closed(again)


def test_a_changed_key_is_never_served(folder: Path) -> None:
    """Neither as another key nor as a traceback about invalid text."""
    for new in (b"kez", b"k\xffy"):
        file = opened(folder)
        put(file, a="1", key="2")
        closed(file)
        path = folder / "rows-5.mdb"
        content = path.read_bytes()
        path.write_bytes(content.replace(b"key", new))
        again = opened(folder, token=6)
        with pytest.raises(RpcError) as caught:
            page(again)
        assert caught.value.code == DAMAGED
        closed(again)
        for one in folder.iterdir():
            one.unlink()


def test_random_damage_never_ends_the_process(folder: Path) -> None:
    """Random pages: a file that passes the check is read completely, or its checksums show damage."""
    path = filled(folder, 300)
    content = path.read_bytes()
    chance = random.Random(5)
    outcomes: dict[str, int] = {}
    for _ in range(300):
        noise = bytearray(content)
        at = 4096 * chance.randrange(2, len(content) // 4096) + chance.choice(
            (chance.randrange(40), chance.randrange(4000))
        )
        noise[at : at + chance.choice((1, 8, 64))] = chance.randbytes(chance.choice((1, 8, 64)))
        path.write_bytes(bytes(noise[: len(content)]))
        try:
            pages.check_tree(str(path))
            outcome = scan(folder)
        except pages.Damaged:
            outcome = "refused"
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    assert set(outcomes) == {"refused", "damaged", "sound"}, outcomes


def test_a_file_that_killed_two_servers_is_read_page_by_page(folder: Path) -> None:
    """LMDB trusts its pages, and dies of some. The third server finds the damage; a clean close resets the count."""
    path = filled(folder)
    content = bytearray(path.read_bytes())
    for at in range(2 * 4096, len(content), 4096):
        if int.from_bytes(content[at + 10 : at + 12], "little") == 2:  # a leaf: its first value is now 16 MiB at page 5
            node = at + int.from_bytes(content[at + 16 : at + 18], "little")
            content[node + 3] = content[node + 4] = 1
            content[node + 13 : node + 21] = (5).to_bytes(8, "little")
    path.write_bytes(bytes(content))
    command = [sys.executable, "-c", _SERVE, str(folder)]
    for token in ("6", "7"):
        assert subprocess.run([*command, token], cwd=ROOT, timeout=60, check=False).returncode < 0
    with pytest.raises(RegionError, match="page 5 is not an overflow page"):
        opened(folder, token=8)


def test_a_sound_file_after_two_deaths_goes_on(folder: Path) -> None:
    """Servers die for many reasons: the check finds nothing, and the marks of deaths are removed."""
    filled(folder)
    for token in (6, 7):
        (folder / f"used-{token}").touch()
    file = opened(folder, token=8)
    assert not list(folder.glob("used-*"))
    assert len(page(file)) == 400
    assert list(folder.glob("used-*"))
    closed(file)
    assert not list(folder.glob("used-*"))


def scan(folder: Path) -> str:
    """Return "damaged", or "sound" if every value of the region is as written."""
    file = opened(folder, token=6)
    try:
        with file.reading() as snapshot:
            found, _ = snapshot.page(b"", b"", 1000)
    except RpcError as error:
        return error.code
    finally:
        closed(file)
    assert all(row.value == f"value {int(row.key[1:])}".encode() * 20 for row in found)
    return "sound"


def test_verify_reports_every_damaged_row(folder: Path) -> None:
    """It continues after each one, and does not close the region."""
    file = opened(folder)
    put(file, **{name: f"value of {name}" for name in "abcdef"})
    closed(file)
    for name in (b"b", b"e"):
        change(folder / "rows-5.mdb", b"value of " + name, b"VALUE of " + name)
    again = opened(folder, token=6)
    with again.reading() as snapshot:
        first = snapshot.verify(b"", 4)
        rest = snapshot.verify(first.next_key, 4)
    assert (first.rows, first.damaged, first.next_key) == (4, ["'b'"], b"e")
    assert (rest.rows, rest.damaged, rest.next_key) == (2, ["'e'"], b"")
    assert first.is_checked
    assert not again.damage
    closed(again)


def test_a_copy_of_damaged_rows_fails_the_open(folder: Path) -> None:
    """After an eviction: damaged rows must not get new checksums."""
    file = opened(folder)
    put(file, a="100 coins")
    change(folder / "rows-5.mdb", b"100 coins", b"900 coins")
    file.close_if_idle()
    with pytest.raises(RegionError, match="row 'a' is damaged"):
        opened(folder, token=6, evict=file.lock.owner.incarnation)
    closed(file)


# --- lost files, and those of earlier builds --------------------------------------------------------------------------


def test_a_lost_file_is_not_an_empty_region(folder: Path) -> None:
    """The mark in the directory shows that there was a file."""
    filled(folder).unlink()
    with pytest.raises(RegionError, match=r"the file of rows in .* is missing"):
        opened(folder, token=6)


def test_rows_of_an_earlier_build_get_their_checksums(folder: Path) -> None:
    """At the first open, durable before the region is announced; the old file is removed."""
    legacy(folder, {b"a": b"1", b"b": b"2"})
    file = opened(folder)
    assert rows_files(folder) == ["rows-5.mdb"]
    assert values(file, "a", "b") == [b"1", b"2"]
    closed(file)
    change(folder / "rows-5.mdb", rows.seal(b"a", b"1"), b"2" + rows.seal(b"a", b"1")[1:])
    again = opened(folder, token=6)
    with pytest.raises(RpcError, match="row 'a' is damaged"):
        values(again, "a")
    closed(again)


def test_a_large_file_of_an_earlier_build_stays_as_it_is(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read and written without checksums; an eviction adds them."""
    monkeypatch.setattr(files_module, "MIGRATED_BYTES_MAX", 4096)
    legacy(folder, {b"a": b"1"})
    file = opened(folder)
    put(file, b="2")
    assert rows_files(folder) == ["data-3.mdb"]
    assert (values(file, "a", "b"), page(file)) == ([b"1", b"2"], ["a", "b"])
    with file.reading() as snapshot:
        assert not snapshot.verify(b"", 10).is_checked
    file.close_if_idle()
    evicted = opened(folder, token=6, evict=file.lock.owner.incarnation)
    assert rows_files(folder) == ["rows-6.mdb"]
    assert values(evicted, "a", "b") == [b"1", b"2"]
    closed(evicted)
    closed(file)


def test_a_file_that_cannot_be_migrated_is_served_without_checksums(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example on a full disk: readable rows must not wait for room."""
    legacy(folder, {b"a": b"1"})

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files_module, "copy_rows", full)
    file = opened(folder)
    assert rows_files(folder) == ["data-3.mdb"]
    assert values(file, "a") == [b"1"]
    closed(file)


def test_an_earlier_build_refuses_the_new_file() -> None:
    """It takes the mark for a file of a later open: its limit is 20 digits, and a token has 64 bits."""
    assert MARKER == "data-18446744073709551615.mdb"


def test_a_creation_that_broke_off_leaves_nothing_that_counts(folder: Path) -> None:
    """The file gets its name when it is complete; a crash before leaves a temporary name, one after it no mark."""
    file = opened(folder)
    (folder / "new-5").write_bytes(b"half")
    put(file, a="1")
    closed(file)
    assert not (folder / "new-5").exists()
    (folder / MARKER).unlink()
    again = opened(folder, token=6)
    assert values(again, "a") == [b"1"]
    assert rows_files(folder) == ["rows-5.mdb"]
    closed(again)


# --- full disks -------------------------------------------------------------------------------------------------------


def test_the_lock_file_is_on_the_disk_before_it_is_mapped(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without room for it the write is rejected. LMDB never maps holes, which would be a SIGBUS on a full disk."""
    file = opened(folder)

    def full(fd: int, offset: int, length: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", full)
        with pytest.raises(RpcError, match="No space left on device") as caught:
            put(file, a="1")
        assert caught.value.code == STORAGE
    put(file, a="1")
    found = (folder / "rows-5.mdb-lock").stat()
    assert found.st_blocks * 512 >= found.st_size == layout._LOCK_BYTES
    closed(file)


def test_a_checksum_fits_its_row_and_no_other() -> None:
    """Values of every length around the bounds of the fast paths, empty values, and too few stored bytes."""
    for size in (0, 1, 4, 100, 1019, 1020, 1021, 1023, 1024, 1025, 100_000):
        value = bytes(number % 251 for number in range(size))
        stored = rows.seal(b"key", value)
        assert len(stored) == size + rows.CRC_BYTES
        assert rows.is_whole(b"key", stored)
        assert rows.unseal(b"key", stored) == value
        for key, other in ((b"kez", stored), (b"key", stored[:-1]), (b"key", stored + b"\0"), (b"key", b"x" + stored)):
            assert not rows.is_whole(key, other)
            with pytest.raises(RpcError, match="damaged"):
                rows.unseal(key, other)
    for stored in (b"", b"\0", b"abc"):
        with pytest.raises(RpcError, match="damaged"):
            rows.unseal(b"k", stored)
