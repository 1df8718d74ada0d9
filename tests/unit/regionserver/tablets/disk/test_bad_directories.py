"""Directories that a server must not use, on a real disk: a clear error, and no byte is changed."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from coord.env import DiskFile
from coord.env_os import OsDisk
from coord.errors import ConfigError
from coord.storage.records import HardStateItem, LogItem
from coord.storage.shared.items import SlotItems
from regionserver.session.instance import MOVED, Instance
from regionserver.tablets.disk.files import TabletFiles
from regionserver.tablets.disk.life import RunState
from regionserver.tablets.disk.sealed import NewerFormat, seal
from regionserver.tablets.disk.startup import RowsFound
from regionserver.tablets.disk.steps import creation
from tests.unit.regionserver.tablets.disk.crashes import SlotStore
from tests.unit.regionserver.tablets.disk.examples import TABLET, meta, ready

OTHER: Final = "t1.r8"


class Box:
    """A stopped server's directory with two tablets. A file stands for the shared log."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.slots = SlotStore()
        instance = Instance.open(path)
        files = TabletFiles(OsDisk(path), self.slots)
        files.admit(instance)
        files.prepare()
        (path / "wals" / "0000000000000001.log").write_bytes(b"log")
        instance.hold_tablets()
        instance.adopt("cluster-1", "the store")
        self.uuid = instance.uuid
        for slot, tablet in enumerate((TABLET, OTHER), 9):
            block = ready(tablet=tablet, slot=slot, server=instance.uuid)
            files.carry_out(creation(block, meta(tablet=tablet)))
            entries = [LogItem(1, index, 0, b"x") for index in (1, 2, 3)]
            self.slots.write([SlotItems(slot, block.generation, HardStateItem(1, 2), entries)])
            (path / "data" / f"{tablet}.3.mdb").write_bytes(b"rows")
        instance.close()

    def start(self) -> dict[str, RunState | None]:
        """Start a server, return its tablets, and end it at once."""
        instance = Instance.open(self.path)
        try:
            files = TabletFiles(OsDisk(self.path), self.slots)
            files.admit(instance)
            files.prepare()
            decided = files.start(self.slots.slots, lambda _t, generation: RowsFound(generation), instance.uuid, 9000)
            instance.hold_tablets()
            return {one.tablet: one.run for one in decided}
        finally:
            instance.close()

    def bytes(self) -> dict[str, bytes]:
        """Return every file except the lock, which names the process."""
        return contents(self.path)


def contents(path: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in sorted(path.rglob("*"))
        if file.is_file() and file.name != "lock"
    }


@pytest.fixture
def box(tmp_path: Path) -> Box:
    return Box(tmp_path / "server")


def refused(box: Box, why: str, error: type[Exception] = ConfigError) -> None:
    """Check that the start is rejected with this reason, twice, and that nothing was changed."""
    before = box.bytes()
    for _ in range(2):
        with pytest.raises(error, match=why):
            box.start()
        assert box.bytes() == before


def test_a_sound_directory_starts_again_and_again(box: Box) -> None:
    before = box.bytes()
    for _ in range(2):
        assert box.start() == {TABLET: RunState.ASLEEP, OTHER: RunState.ASLEEP}
        assert box.bytes() == before


def test_a_copied_directory_is_refused(box: Box, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(box.path, copy)
    original, box.path = box.path, copy
    refused(box, f"^{copy} is a copy: .* create {copy}/moved-here and start once more$")
    box.path = original
    assert box.start()[TABLET] is RunState.ASLEEP


def test_a_moved_directory_is_accepted_once(box: Box, tmp_path: Path) -> None:
    """The operator's file must not be part of the next copy."""
    box.path = Path(shutil.copytree(box.path, tmp_path / "moved"))
    (box.path / MOVED).touch()
    assert box.start()[TABLET] is RunState.ASLEEP
    assert not (box.path / MOVED).exists()
    assert box.start()[TABLET] is RunState.ASLEEP
    box.path = Path(shutil.copytree(box.path, tmp_path / "again"))
    refused(box, "is a copy")


def test_a_renamed_directory_is_the_same(box: Box, tmp_path: Path) -> None:
    box.path = box.path.rename(tmp_path / "renamed")
    assert box.start()[TABLET] is RunState.ASLEEP


def test_another_clusters_directory_is_refused(box: Box) -> None:
    before = box.bytes()
    instance = Instance.open(box.path)
    with pytest.raises(ConfigError, match=r"cluster cluster-1.*cluster-2"):
        instance.adopt("cluster-2", "the store")
    instance.close()
    assert box.bytes() == before


def test_another_servers_files_are_refused(box: Box, tmp_path: Path) -> None:
    other = Box(tmp_path / "other")
    shutil.copy(other.path / "tablet-meta" / OTHER, box.path / "tablet-meta" / OTHER)
    refused(box, f"superblocks of server {other.uuid} \\({OTHER}\\), and this is server {box.uuid}")


def test_tablets_without_their_identity_are_refused(box: Box) -> None:
    """With a new uuid the server would vote with another server's memory."""
    path = box.path / "instance.json"
    path.unlink()
    before = box.bytes()
    with pytest.raises(ConfigError, match=r"holds tablets, and its instance.json is gone"):
        box.start()
    assert box.bytes() == before
    foreign = b'{"format":1,"uuid":"another","start_code":7,"cluster_id":"c1"}'
    path.write_bytes(foreign)
    with pytest.raises(ConfigError, match=r"holds 2 tablets, and its instance.json is not theirs"):
        box.start()
    assert box.bytes() == {**before, "instance.json": foreign}


def test_every_flipped_bit_of_the_identity_is_refused(box: Box) -> None:
    path = box.path / "instance.json"
    whole = path.read_bytes()
    for position in range(len(whole)):
        for bit in range(8):
            broken = bytearray(whole)
            broken[position] ^= 1 << bit
            path.write_bytes(broken)
            with pytest.raises(ConfigError, match=r"instance\.json"):
                Instance.open(box.path)
        assert path.read_bytes() == broken
    path.write_bytes(whole)
    assert box.start()[TABLET] is RunState.ASLEEP


def test_a_truncated_identity_is_refused(box: Box) -> None:
    path = box.path / "instance.json"
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(ConfigError, match=r"nothing was changed\. The tablets in .* belong to that identity"):
            Instance.open(box.path)


def test_an_identity_of_a_newer_format_is_refused(box: Box) -> None:
    path = box.path / "instance.json"
    path.write_text(json.dumps({**json.loads(path.read_bytes()), "format": 3}))
    refused(box, r"instance\.json has format 3; this program supports formats 1 and 2")


@pytest.mark.parametrize("folder", ["tablet-meta", "consensus-meta", "wals", "data"])
def test_a_folder_that_is_gone_is_refused(box: Box, folder: str) -> None:
    shutil.rmtree(box.path / folder)
    refused(box, f"/{folder} is gone, and this server has had tablets: .*: the server gets a new identity")
    assert not (box.path / folder).exists()


def test_a_log_that_is_gone_is_refused(box: Box) -> None:
    for file in (box.path / "wals").iterdir():
        file.unlink()
    refused(box, "/wals has no log, and this server has promised votes in it")


def test_a_log_that_knows_no_tablet_is_refused(box: Box) -> None:
    box.slots.slots.clear()
    refused(box, f"/wals knows none of the 2 replicas of this server \\({TABLET}, {OTHER}\\): it is another log")


def test_a_log_that_knows_some_tablets_costs_the_others(box: Box) -> None:
    del box.slots.slots[10]
    assert box.start() == {TABLET: RunState.ASLEEP, OTHER: RunState.LOST}


@pytest.mark.parametrize(("folder", "magic"), [("tablet-meta", b"RKSB"), ("consensus-meta", b"RKCM")])
def test_a_newer_format_of_one_file_stops_the_start(box: Box, folder: str, magic: bytes) -> None:
    """Also if another file is damaged: every file is read before any decision."""
    (box.path / folder / OTHER).write_bytes(seal(magic, 2, b"?"))
    (box.path / "tablet-meta" / TABLET).write_bytes(b"torn")
    refused(box, f"/{folder}/{OTHER} has format 2, this build knows formats up to 1: start a build", NewerFormat)


@pytest.mark.skipif(os.getuid() == 0, reason="root may read everything")
def test_a_file_without_permission_stops_the_start(box: Box) -> None:
    (box.path / "tablet-meta" / TABLET).chmod(0)
    with pytest.raises(ConfigError, match="cannot be read: Permission denied; nothing was changed"):
        box.start()


@pytest.mark.parametrize("code", ["EMFILE", "EACCES", "ENOMEM"])
def test_an_error_that_says_nothing_about_the_content_stops_the_start(
    box: Box, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    """Treating it as damage would burn the number of an intact replica."""
    unreadable(monkeypatch, f"tablet-meta/{TABLET}", code)
    refused(box, f"/tablet-meta/{TABLET} cannot be read: .*; nothing was changed")


class _UnreadableFile:
    """An open file whose content the medium cannot return."""

    def __init__(self, file: DiskFile, code: int) -> None:
        self.size = file.size
        self.close = file.close
        self._code = code

    def read_at(self, offset: int, size: int) -> bytes:
        raise OSError(self._code, os.strerror(self._code))


def unreadable(monkeypatch: pytest.MonkeyPatch, bad: str, code: str, *, opens: bool = False) -> None:
    """Let a file fail when it is read, or when it is opened, until it is replaced."""
    open_file, rename = OsDisk.open, OsDisk.rename
    number = getattr(errno, code)
    is_bad = True

    def opened(self: OsDisk, path: str, *, create: bool = False) -> object:
        if path != bad or not is_bad:
            return open_file(self, path, create=create)
        if opens:
            return _UnreadableFile(open_file(self, path), number)
        raise OSError(number, os.strerror(number))

    def renamed(self: OsDisk, old: str, new: str) -> None:
        nonlocal is_bad
        rename(self, old, new)
        is_bad = is_bad and new != bad

    monkeypatch.setattr(OsDisk, "open", opened)
    monkeypatch.setattr(OsDisk, "rename", renamed)


@pytest.mark.parametrize("code", ["EIO", "EBADMSG", "EUCLEAN"])
@pytest.mark.parametrize("opens", [True, False], ids=["content", "inode"])
@pytest.mark.parametrize("folder", ["tablet-meta", "consensus-meta"])
def test_a_file_that_its_medium_cannot_return_costs_its_tablet_and_nothing_else(
    box: Box, monkeypatch: pytest.MonkeyPatch, folder: str, opens: bool, code: str
) -> None:
    """Fails if `_MEDIUM_ERRORS` of files.py lacks the error: the server does not start then, because of one file."""
    unreadable(monkeypatch, f"{folder}/{TABLET}", code, opens=opens)
    assert box.start() == {TABLET: RunState.LOST, OTHER: RunState.ASLEEP}
    assert box.start() == {TABLET: RunState.LOST, OTHER: RunState.ASLEEP}


def _flips(content: bytes) -> Iterator[bytes]:
    for position in range(len(content)):
        yield content[:position] + bytes([content[position] ^ 1 << position % 8]) + content[position + 1 :]


def _cuts(content: bytes) -> Iterator[bytes]:
    for length in range(len(content)):
        yield content[:length]


@pytest.mark.parametrize("spoil", [_flips, _cuts], ids=["flipped", "truncated"])
@pytest.mark.parametrize("folder", ["tablet-meta", "consensus-meta"])
def test_a_damaged_file_costs_its_tablet_and_nothing_else(
    tmp_path: Path, folder: str, spoil: Callable[[bytes], Iterator[bytes]]
) -> None:
    """Wherever the damage is, the tablet is LOST with all its files in quarantine, and the other tablet continues."""
    whole = Box(tmp_path / "whole")
    for number, broken in enumerate(spoil((whole.path / folder / TABLET).read_bytes())):
        if number % 7:
            continue
        box = Box(tmp_path / str(number))
        (box.path / folder / TABLET).write_bytes(broken)
        before = box.bytes()
        assert box.start() == {TABLET: RunState.LOST, OTHER: RunState.ASLEEP}
        after = box.bytes()
        assert {name: content for name, content in before.items() if OTHER in name}.items() <= after.items()
        for name, content in before.items():
            if TABLET in name:
                assert content in after.values(), name
        assert 9 not in box.slots.slots
        assert len([name for name in after if name.startswith("quarantine/") and name.endswith("/log")]) == 1
        assert box.start() == {TABLET: RunState.LOST, OTHER: RunState.ASLEEP}
        shutil.rmtree(box.path)
