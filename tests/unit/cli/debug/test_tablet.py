"""`rk debug tablet` prints a stopped server's files: damage is named, a running server's directory is refused."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from pathlib import Path
from typing import Any, Final

import pytest

from cli.debug.tablet import entry_fields
from cli.main import run
from coord.env_os import OsDisk
from coord.raft.membership import Configuration
from coord.raft.messages import CONFIG, NOOP, NORMAL, Entry
from coord.storage.records import HardStateItem, LogItem
from coord.storage.shared.items import SlotItems
from coord.storage.shared.log import open_shared_log
from regionserver.session.instance import Instance
from regionserver.tablets.commands import DONE, DeleteRow, KvCommand, PutRow, encode
from regionserver.tablets.disk.files import TabletFiles
from regionserver.tablets.disk.joined import StartingSlots
from regionserver.tablets.disk.sealed import seal
from regionserver.tablets.disk.steps import creation, deletion
from regionserver.tablets.disk.superblock import Memory
from regionserver.tablets.rows.state import Identity
from regionserver.tablets.rows.tablet_rows import TabletRows
from tests.unit.regionserver.tablets.disk.examples import MEMBERS, TABLET, meta, ready

OTHER: Final = "t1.r8"


class Box:
    """A stopped server with one live tablet and one removed tablet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        instance = Instance.open(path)
        shared, _ = open_shared_log(OsDisk(path))
        files = TabletFiles(OsDisk(path), StartingSlots(shared))
        files.prepare()
        instance.hold_tablets()
        for tablet in (TABLET, OTHER):
            slot = shared.next_slot()
            block = ready(tablet=tablet, slot=slot, server=instance.uuid)
            files.carry_out(creation(block, meta(tablet=tablet)))
            entries = [
                LogItem(1, 1, NOOP, b""),
                LogItem(1, 2, CONFIG, MEMBERS.encode()),
                LogItem(2, 3, NORMAL, b"\x07what no build writes"),
            ]
            items = SlotItems(slot, block.generation, HardStateItem(5, 2), entries)
            shared.write([shared.batch([items])])
            if tablet == OTHER:
                files.carry_out(deletion(block, Memory(5, 2, 2, 3), "given to another server", 2000))
        shared.close()
        instance.close()

    def rk(self, *arguments: str) -> int:
        return run(["debug", "tablet", *arguments, "--data-dir", str(self.path)])

    def contents(self) -> dict[str, tuple[bytes, int]]:
        """Return bytes and time of change of every file."""
        return {
            str(file): (file.read_bytes(), file.stat().st_mtime_ns) for file in self.path.rglob("*") if file.is_file()
        }


@pytest.fixture
def box(tmp_path: Path) -> Box:
    return Box(tmp_path / "server-1")


def printed(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def lines(capsys: pytest.CaptureFixture[str]) -> list[Any]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("command", ["meta", "cmeta", "log", "verify"])
@pytest.mark.parametrize("json_too", [(), ("--json",)])
def test_nothing_is_written(box: Box, command: str, json_too: tuple[str, ...]) -> None:
    before = box.contents()
    for tablet in (TABLET, OTHER):
        assert box.rk(command, tablet, *json_too) == 0
    assert box.contents() == before


def test_a_superblock_in_words(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    assert box.rk("meta", TABLET) == 0
    out = capsys.readouterr().out
    for part in ("READY", "[ä, k)", "orders", "2, the highest ever here 2"):
        assert part in out
    assert box.rk("meta", OTHER) == 0
    out = capsys.readouterr().out
    assert "term 5, vote for 2, last entry 2/3" in out
    assert f"quarantine/{OTHER}.3" in out
    assert "given to another server" in out
    assert box.rk("meta", OTHER, "--json") == 0
    found = printed(capsys)
    assert (found["data_state"], found["memory"]["last_index"], found["slot"]) == ("DELETED", 3, None)


def test_whose_promise_counts(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    """The log's while the slot lives, otherwise the tombstone's."""
    for tablet, source in ((TABLET, "the shared log"), (OTHER, "the tombstone")):
        assert box.rk("cmeta", tablet, "--json") == 0
        found = printed(capsys)
        assert found["counts"] == {"term": 5, "vote": 2, "from": source}
        assert (found["voters"], found["term"], found["number"]) == ([1, 2, 3], 0, 2)
        assert box.rk("cmeta", tablet) == 0
        assert f"term 5, vote for 2 ({source})" in capsys.readouterr().out


@pytest.mark.parametrize("tablet", [TABLET, OTHER])
def test_entries_of_a_slot_and_of_an_exported_log(box: Box, capsys: pytest.CaptureFixture[str], tablet: str) -> None:
    assert box.rk("log", tablet, "--json") == 0
    head, *entries = lines(capsys)
    assert (head["term"], head["vote"], head["last"]) == (5, 2, [2, 3])
    assert [(one["term"], one["index"], one["kind"]) for one in entries] == [
        (1, 1, "no-op"),
        (1, 2, "members"),
        (2, 3, "command"),
    ]
    assert entries[1]["members"] == repr(Configuration([1, 2, 3]))
    assert box.rk("log", tablet, "--from", "2", "--to", "2") == 0
    out = capsys.readouterr().out
    assert "1/2  members" in out
    assert "1/1" not in out
    assert box.rk("log", tablet, "--from", "3", "--to", "2") == 2


def test_records_of_a_slot(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    assert box.rk("log", TABLET, "--records") == 0
    out = capsys.readouterr().out
    assert "opened: member 2 of t1.r7" in out
    assert "entries 1 to 3 of terms 1 to 2" in out


def test_verify_says_what_a_start_would_do(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    assert box.rk("verify", "--json") == 0
    found = printed(capsys)
    assert found["sound"] is True
    assert [(one["tablet"], one["run"]) for one in found["tablets"]] == [(TABLET, "ASLEEP"), (OTHER, "TOMBSTONE")]


@pytest.mark.parametrize(("folder", "command"), [("tablet-meta", "meta"), ("consensus-meta", "cmeta")])
def test_damage_is_named(box: Box, capsys: pytest.CaptureFixture[str], folder: str, command: str) -> None:
    path = box.path / folder / TABLET
    content = bytearray(path.read_bytes())
    content[30] ^= 1
    path.write_bytes(content)
    assert box.rk(command, TABLET) == 1
    assert f"{path} is damaged: its checksum is" in capsys.readouterr().err
    assert box.rk("verify", TABLET) == 1
    out = capsys.readouterr().out
    assert f"{folder}/{TABLET}: its checksum is" in out
    assert "LOST" in out


@pytest.mark.parametrize(
    ("content", "what"), [(None, "is missing"), (b"{", "is not the identity"), (b"{}", "is not the identity")]
)
def test_an_identity_that_no_server_starts_with_is_damage(
    box: Box, capsys: pytest.CaptureFixture[str], content: bytes | None, what: str
) -> None:
    path = box.path / "instance.json"
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    assert box.rk("verify") == 1
    out = capsys.readouterr().out
    assert f"a server does not start here: {path} {what}" in out
    assert box.rk("verify", TABLET, "--json") == 1
    assert what in printed(capsys)["refusal"]


def test_superblocks_of_another_server_are_damage(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    (box.path / "instance.json").unlink()
    (box.path / "tablet-meta").rename(box.path / "away")
    with contextlib.closing(Instance.open(box.path)) as other:
        (box.path / "away").rename(box.path / "tablet-meta")
        other.hold_tablets()
    assert box.rk("verify") == 1
    assert "has superblocks of server" in capsys.readouterr().out


def test_a_copy_of_a_directory_may_be_looked_at(box: Box, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(box.path, copy)
    assert run(["debug", "tablet", "verify", "--data-dir", str(copy)]) == 0, capsys.readouterr().out


def test_a_damaged_log_is_named(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    path = next((box.path / "wals").iterdir())
    content = bytearray(path.read_bytes())
    content[content.index(b"what no build")] ^= 1
    path.write_bytes(content)
    assert box.rk("log", TABLET) == 1
    assert "DAMAGE" in capsys.readouterr().out
    assert box.rk("verify") == 1
    assert "damaged" in capsys.readouterr().out


def test_a_newer_format_is_named(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    (box.path / "tablet-meta" / OTHER).write_bytes(seal(b"RKSB", 9, b""))
    for arguments in (("meta", OTHER), ("verify",)):
        assert box.rk(*arguments) == 1
        assert f"tablet-meta/{OTHER} has format 9" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["meta", "cmeta", "log", "verify"])
@pytest.mark.parametrize("tablet", ["t1.r9", "../instance.json", ""])
def test_an_unknown_tablet_is_not_found(box: Box, command: str, tablet: str) -> None:
    if command == "verify" and not tablet:
        return
    assert box.rk(command, tablet) == 4


@pytest.mark.parametrize("command", ["meta", "cmeta", "log", "verify"])
def test_a_running_server_is_left_alone(box: Box, capsys: pytest.CaptureFixture[str], command: str) -> None:
    instance = Instance.open(box.path)
    try:
        assert box.rk(command, TABLET) == 1
    finally:
        instance.close()
    assert f"{box.path} is in use by a running server (process {os.getpid()})" in capsys.readouterr().err


def test_another_directory_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["debug", "tablet", "meta", TABLET, "--data-dir", str(tmp_path)]) == 2
    assert "is not the data directory of a region server with tablets" in capsys.readouterr().err


def test_every_cut_of_every_file_is_one_clear_line(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    """No traceback, however short a file is."""
    for file in [*(box.path / "tablet-meta").iterdir(), *(box.path / "consensus-meta").iterdir()]:
        whole = file.read_bytes()
        for length in range(0, len(whole), 41):
            file.write_bytes(whole[:length])
            for command in ("meta", "cmeta", "log", "verify"):
                assert box.rk(command, file.name) in (0, 1)
        file.write_bytes(whole)
    assert "unexpected" not in capsys.readouterr().err


# --- rows -------------------------------------------------------------------------------------------------------------


def write_rows(box: Box, boot: str, *, steady: bool = True) -> None:
    """Let the live tablet apply two entries."""
    path = str(box.path / "data" / f"{TABLET}.3.mdb")
    opened = TabletRows.open(path, Identity(TABLET, 3), boot, (0, 0))
    for index, key in ((1, "b"), (2, "c")):
        command = KvCommand("w", index, 0, 1000, 1000, [PutRow(key, b"value of " + key.encode())])
        outcomes = opened.apply([Entry(1, index, NORMAL, encode(command))])
        assert [one.code for one in outcomes] == [DONE]
        if steady and index == 1:
            opened.steady()
    opened.abandon()


def this_boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def test_rows_and_their_state(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    write_rows(box, this_boot())
    before = box.contents()
    assert box.rk("rows", TABLET, "--check", "--json") == 0
    state, *found = lines(capsys)
    assert (state["applied"], state["rows"], state["steady"], state["set_back"]) == ([1, 2], 2, [1, 1], False)
    assert found == [{"key": "b", "value": "value of b"}, {"key": "c", "value": "value of c"}]
    assert box.rk("rows", TABLET, "--from", "c") == 0
    out = capsys.readouterr().out
    assert "value of c" in out
    assert "value of b" not in out
    assert box.contents() == before


def test_rows_of_another_boot_are_those_of_the_steady_point(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    write_rows(box, "another boot")
    before = box.contents()
    assert box.rk("rows", TABLET, "--check", "--json") == 0
    state, *found = lines(capsys)
    assert (state["applied"], state["set_back"]) == ([1, 1], True)
    assert [one["key"] for one in found] == ["b"]
    assert box.contents() == before


def test_a_damaged_row_is_named(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    write_rows(box, this_boot())
    path = box.path / "data" / f"{TABLET}.3.mdb"
    path.write_bytes(path.read_bytes().replace(b"value of c", b"value of C"))
    assert box.rk("rows", TABLET, "--check") == 1
    assert "is damaged" in capsys.readouterr().err


def test_a_damaged_steady_point_is_named(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    write_rows(box, this_boot())
    path = box.path / "data" / f"{TABLET}.3.mdb.steady"
    content = bytearray(path.read_bytes())
    content[50] ^= 1
    path.write_bytes(content)
    assert box.rk("rows", TABLET) == 1
    assert f"{path} is damaged" in capsys.readouterr().err
    assert box.rk("verify", TABLET, "--json") == 1
    assert [one["run"] for one in printed(capsys)["tablets"]] == ["FAILED"]


def test_a_truncated_file_of_rows_is_named(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    write_rows(box, this_boot())
    path = box.path / "data" / f"{TABLET}.3.mdb"
    whole = path.read_bytes()
    for length in (0, 100, 4096, len(whole) // 2):
        path.write_bytes(whole[:length])
        assert box.rk("rows", TABLET) == 1
        assert str(path) in capsys.readouterr().err


def test_a_replica_without_rows(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    assert box.rk("rows", OTHER) == 4
    assert f"is DELETED on this server and has no rows; those of the former replica are in quarantine/{OTHER}.3" in (
        capsys.readouterr().err
    )
    assert box.rk("rows", TABLET) == 4


def test_commands_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    command = KvCommand("w", 7, 3, 0, 1, [PutRow("k", b"v"), DeleteRow("l")])
    fields = entry_fields(LogItem(1, 9, NORMAL, encode(command)))
    assert fields["command"]["operations"] == [
        {"operation": "put", "key": "k", "bytes": 1},
        {"operation": "delete", "key": "l", "bytes": None},
    ]
    assert "format 7" in entry_fields(LogItem(1, 9, NORMAL, b"\x07x"))["unreadable"]
