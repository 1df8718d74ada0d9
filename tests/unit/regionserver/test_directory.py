"""Regions as directories: one owner, durable records, and the eviction of the dead."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from coord.errors import ConfigError
from regions.model import Incarnation, RegionRecord
from regionserver import directory
from regionserver.directory import DirectoryOpener
from regionserver.opener import Opening, OwnerHeld, RegionError

ME, OTHER = Incarnation("me", 1), Incarnation("other", 2)
REGION = RegionRecord("t", "r1", start_key="a")


@pytest.fixture(autouse=True)
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was synced; nothing really is: a sync waits for whatever else is being written on this machine."""
    paths: list[str] = []
    monkeypatch.setattr(directory, "_sync_file_system", paths.append)
    return paths


def opening(
    server: Incarnation = ME, evict: Incarnation | None = None, region: RegionRecord = REGION, replica: int = 0
) -> Opening:
    return Opening(region, replica, server, 4, evict, lambda: None)


def take(opener: DirectoryOpener, **fields: Any) -> None:
    made = opening(**fields)
    opener.prepare([made])
    opener.open(made)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "regions" / "t" / "r1"


def test_open_makes_the_directory_and_signs_it(tmp_path: Path, folder: Path) -> None:
    """region.json as of the first open, owner as of this one."""
    take(DirectoryOpener(tmp_path))
    assert json.loads((folder / "region.json").read_text())["start_key"] == "a"
    assert json.loads((folder / "owner").read_text()) == {"uuid": "me", "start_code": 1, "epoch": 4}
    assert sorted(os.listdir(folder)) == ["owner", "region.json"]


def test_other_replicas_have_directories_of_their_own(tmp_path: Path) -> None:
    """One server may not hold two replicas, but a shared directory holds all."""
    opener = DirectoryOpener(tmp_path)
    take(opener)
    take(opener, replica=1)
    assert sorted(os.listdir(tmp_path / "regions" / "t")) == ["r1", "r1.1"]


def test_a_held_region_is_refused_and_says_by_whom(tmp_path: Path) -> None:
    """The second line of defence behind the store's compare-and-set."""
    take(DirectoryOpener(tmp_path), server=OTHER)
    with pytest.raises(OwnerHeld) as caught:
        take(DirectoryOpener(tmp_path))
    assert caught.value.holder == OTHER


def test_a_closed_region_can_be_opened_by_another(tmp_path: Path) -> None:
    """Closing gives the lock back at once."""
    first, second = DirectoryOpener(tmp_path), DirectoryOpener(tmp_path)
    take(first, server=OTHER)
    first.close(REGION, 0)
    first.close(REGION, 0)
    take(second)


def test_only_the_named_holder_is_evicted(tmp_path: Path, folder: Path) -> None:
    """An eviction of one incarnation does not break another's hold."""
    take(DirectoryOpener(tmp_path), server=OTHER)
    with pytest.raises(OwnerHeld):
        take(DirectoryOpener(tmp_path), evict=Incarnation("other", 1))
    take(DirectoryOpener(tmp_path), evict=OTHER)
    assert json.loads((folder / "owner").read_text())["uuid"] == "me"


def test_after_an_eviction_the_old_holder_cannot_disturb_the_new_one(tmp_path: Path, folder: Path) -> None:
    """Its lock is on a file without a name; closing it changes nothing, and a third server is still refused."""
    old, new = DirectoryOpener(tmp_path), DirectoryOpener(tmp_path)
    take(old, server=OTHER)
    take(new, evict=OTHER)
    old.close(REGION, 0)
    assert json.loads((folder / "owner").read_text())["uuid"] == "me"
    with pytest.raises(OwnerHeld) as caught:
        take(DirectoryOpener(tmp_path), server=Incarnation("third", 3))
    assert caught.value.holder == ME


def test_an_unsigned_hold_is_never_broken(tmp_path: Path) -> None:
    """Who cannot be named cannot be proved dead."""
    opener = DirectoryOpener(tmp_path)
    take(opener, server=OTHER)
    (tmp_path / "regions" / "t" / "r1" / "owner").write_text("")
    with pytest.raises(OwnerHeld):
        take(DirectoryOpener(tmp_path), evict=OTHER)


@pytest.mark.parametrize("name", ["..", ".", "a/b", "", "-x", "a\0b", "x" * 300])
def test_ids_that_mean_something_to_the_file_system_are_refused(tmp_path: Path, name: str) -> None:
    """Ids come over the network."""
    opener = DirectoryOpener(tmp_path)
    for region in (RegionRecord("t", name), RegionRecord(name, "r")):
        with pytest.raises(RegionError, match="cannot be the name"):
            opener.path(region, 0)


def test_many_first_opens_are_synced_once(tmp_path: Path, synced: list[str]) -> None:
    """One sync for all that are new, none for those that are there."""
    opener = DirectoryOpener(tmp_path)
    openings = [opening(region=RegionRecord("t", f"r{number}")) for number in range(50)]
    opener.prepare(openings)
    opener.prepare(openings)
    assert len(synced) == 1


def test_the_real_sync_works_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system call is reached and its failure is an OSError."""
    monkeypatch.undo()
    directory._sync_file_system(str(tmp_path))
    with pytest.raises(OSError, match="No such file"):
        directory._sync_file_system(str(tmp_path / "missing"))


def test_the_first_region_json_stays(tmp_path: Path, folder: Path) -> None:
    """It is the record as of the first open."""
    opener = DirectoryOpener(tmp_path)
    opener.prepare([opening()])
    opener.prepare([opening(region=RegionRecord("t", "r1", start_key="z"))])
    assert json.loads((folder / "region.json").read_text())["start_key"] == "a"


def test_of_many_at_once_exactly_one_gets_the_region(tmp_path: Path) -> None:
    """TS-06: exactly one winner, on the file system as in the store."""
    won: list[int] = []
    start = threading.Barrier(8)

    def contend(number: int) -> None:
        opener = DirectoryOpener(tmp_path)
        start.wait()
        try:
            take(opener, server=Incarnation(str(number), 1))
        except OwnerHeld:
            return
        won.append(number)

    threads = [threading.Thread(target=contend, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(won) == 1


def test_a_directory_that_cannot_be_written_is_refused_at_start(tmp_path: Path) -> None:
    """One clear line before anything is registered."""
    (tmp_path / "shared").write_text("")
    with pytest.raises(ConfigError, match="shared directory"):
        DirectoryOpener(tmp_path / "shared")
