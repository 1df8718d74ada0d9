"""A server removes the rows of a deleted table: only when the store says so, never of an open region, at any crash."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from twisted.internet.defer import ensureDeferred, succeed
from twisted.python.failure import Failure

from coord.errors import NoNode
from coord.rpc.server import RpcError
from regions.messages import BAD_REQUEST, BUSY, Directories, Purged
from regions.records.model import Incarnation, RegionRecord, TableRecord, TableState
from regions.records.znodes import encode
from regionserver.opener import Opening, RegionError
from regionserver.storage.directory import DirectoryOpener
from regionserver.storage.purging import Purges

GONE = TableRecord("t", "orders", state=TableState.REMOVED, finished_ms=5, removed_ms=4, purge_at_ms=6, purging_ms=7)
ME = Incarnation("a", 1)


class Server:
    """A server as purges use it: an opener with two tables, and a store with their records."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.opener = DirectoryOpener(folder)
        assert self.opener.shared is not None
        self.opener.shared.create("c")
        self.opener.shared.check()
        self.records: dict[str, bytes] = {"t": encode(GONE)}
        self.hosted: set[str] = set()
        for table in ("t", "other"):
            for number in (0, 1):
                opening = self.opening(table, number)
                self.opener.prepare([opening])
                self.opener.open(opening)
                self.opener.close(opening.region, 0)
        self.purges = Purges(self.opener, self.in_thread, self.read, lambda: self.hosted)

    @staticmethod
    def opening(table: str, number: int) -> Opening:
        region = RegionRecord(table, f"{table}.{number}")
        return Opening(region, 0, ME, 1, None, lambda: None, 10 + number)

    @staticmethod
    def in_thread(work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        try:
            result = work()
        except Exception as error:
            result = error
        done(result)

    def read(self, table_id: str) -> Any:
        if table_id not in self.records:
            raise NoNode(table_id)
        return succeed(self.records[table_id])

    def purge(self, table_id: str = "t") -> Any:
        """Return the answer, or the code of the rejection."""
        answers: list[Any] = []
        ensureDeferred(self.purges.purge(table_id)).addBoth(answers.append)
        [answer] = answers
        if isinstance(answer, Failure):
            assert isinstance(answer.value, RpcError), answer.getTraceback()
            return answer.value.code
        return answer

    def files(self, table_id: str = "t") -> bool:
        return (self.folder / "regions" / table_id).exists()


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path)


def test_rows_are_removed_once(server: Server) -> None:
    assert server.purge() == Purged(2)
    assert (server.files(), server.files("other")) == (False, True)
    assert server.purge() == Purged(0), "the order comes again after a lost answer"
    assert os.listdir(server.folder / "purged") == []


@pytest.mark.parametrize(
    "changes",
    [
        {"state": TableState.RUNNING},
        {"state": TableState.ALTERING},
        {"purging_ms": 0},
        {"finished_ms": 0},
        {"table_id": "other"},
    ],
)
def test_rows_are_kept_unless_the_store_releases_them(server: Server, changes: dict[str, Any]) -> None:
    server.records["t"] = encode(msgspec.structs.replace(GONE, **changes))
    assert server.purge() == BAD_REQUEST
    assert server.files()


def test_rows_of_unknown_tables_and_foreign_files_are_kept(server: Server) -> None:
    server.records = {"t": b"{"}
    assert (server.purge("t"), server.purge("other")) == (BUSY, BAD_REQUEST)
    assert server.files()
    assert server.files("other")


def test_rows_of_a_table_with_a_region_on_this_server_are_kept(server: Server) -> None:
    server.hosted = {"t"}
    assert server.purge() == BAD_REQUEST
    assert server.files()


def test_rows_of_a_region_open_on_another_server_are_kept(server: Server) -> None:
    """A frozen server holds its lock although the store counts it as dead."""
    other = DirectoryOpener(server.folder)
    opening = server.opening("t", 1)
    assert other.shared is not None
    other.shared.check()
    opening.token += 10
    other.prepare([opening])
    other.open(opening)
    assert server.purge() == BUSY
    assert server.files()
    other.close(opening.region, 0)
    assert server.purge() == Purged(2)


def test_rows_of_a_region_open_here_are_kept(server: Server) -> None:
    opening = server.opening("t", 0)
    opening.token += 10
    server.opener.prepare([opening])
    server.opener.open(opening)
    with pytest.raises(RegionError, match="open on this server"):
        server.opener.purge("t")
    assert server.files()


@pytest.mark.parametrize("crash", ["before the move", "before the removal", "in the removal"])
def test_an_interrupted_purge_is_finished_later(server: Server, monkeypatch: pytest.MonkeyPatch, crash: str) -> None:
    class Crash(BaseException):
        """Raised where the process ends."""

    def end(*_: Any, **__: Any) -> None:
        raise Crash

    real = shutil.rmtree

    def half(path: str) -> None:
        [moved] = os.listdir(path)
        real(f"{path}/{moved}/{sorted(os.listdir(f'{path}/{moved}'))[0]}")
        raise Crash

    with monkeypatch.context() as patched:
        if crash == "before the move":
            patched.setattr(os, "rename", end)
        else:
            patched.setattr(shutil, "rmtree", end if crash == "before the removal" else half)
        with pytest.raises(Crash):
            server.opener.purge("t")
    assert server.files() == (crash == "before the move")
    later = DirectoryOpener(server.folder)
    assert later.shared is not None
    assert later.kept()[1] == ["t"]
    assert later.purge("t") == {"before the move": 2, "before the removal": 2, "in the removal": 1}[crash]
    assert later.kept() == (["other"], [])
    assert server.files("other")


@pytest.mark.parametrize("table_id", ["..", ".", "a/b", "", "t*"])
def test_an_invalid_id_is_rejected(server: Server, table_id: str) -> None:
    with pytest.raises(RegionError):
        server.opener.purge(table_id)
    assert server.files()


def test_tables_with_files_are_listed(server: Server) -> None:
    answers: list[Any] = []
    ensureDeferred(server.purges.directories()).addBoth(answers.append)
    assert answers == [Directories(["other", "t"], [])]


def test_a_missing_shared_directory_does_not_count_as_purged(server: Server, tmp_path: Path) -> None:
    """The volume was unmounted: its files exist when it is mounted again."""
    for name in os.listdir(tmp_path):
        shutil.move(tmp_path / name, tmp_path.parent / f"unmounted-{name}")
    assert server.purge() == BUSY
