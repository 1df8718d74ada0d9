"""Regions as directories: one owner, durable records, and eviction of dead owners."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from coord.errors import ConfigError
from regions.records.model import Incarnation, RegionRecord, ReplicaLocation
from regionserver.opener import Opening, OwnerHeld, RegionError
from regionserver.storage import directory
from regionserver.storage import ownership as owner_module
from regionserver.storage.directory import DirectoryOpener
from regionserver.storage.ownership import Superseded

ME, OTHER = Incarnation("me", 1), Incarnation("other", 2)
REGION = RegionRecord("t", "r1", start_key="a")


@pytest.fixture(autouse=True)
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the synced files without syncing: a real sync waits for all other writes of this machine."""
    paths: list[str] = []
    monkeypatch.setattr(directory, "_sync_file_system", paths.append)
    return paths


def opening(
    server: Incarnation = ME,
    evict: Incarnation | None = None,
    region: RegionRecord = REGION,
    replica: int = 0,
    token: int = 7,
) -> Opening:
    return Opening(region, replica, server, 4, evict, lambda: None, token)


def owner(folder: Path, token: int) -> dict[str, Any]:
    """Return the content of a mark."""
    found: dict[str, Any] = json.loads((folder / f"owner-{token}").read_text())
    return found


def take(opener: DirectoryOpener, **fields: Any) -> None:
    made = opening(**fields)
    opener.prepare([made])
    opener.open(made)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "regions" / "t" / "r1"


def test_open_makes_the_directory_and_signs_it(tmp_path: Path, folder: Path) -> None:
    """region.json is that of the first open, the mark that of this one."""
    take(DirectoryOpener(tmp_path))
    assert json.loads((folder / "region.json").read_text())["start_key"] == "a"
    assert owner(folder, 7) == {"uuid": "me", "start_code": 1, "epoch": 4, "token": 7}
    assert sorted(os.listdir(folder)) == ["opened-7", "owner-7", "region.json"]


def test_other_replicas_have_directories_of_their_own(tmp_path: Path) -> None:
    """One server may not hold two replicas, but a shared directory has all of them."""
    opener = DirectoryOpener(tmp_path)
    take(opener)
    take(opener, replica=1)
    assert sorted(os.listdir(tmp_path / "regions" / "t")) == ["r1", "r1.1"]


def test_a_held_region_is_rejected_with_its_holder(tmp_path: Path) -> None:
    """The second protection, after the store's compare-and-set."""
    take(DirectoryOpener(tmp_path), server=OTHER)
    with pytest.raises(OwnerHeld) as caught:
        take(DirectoryOpener(tmp_path), token=8)
    assert caught.value.holder == OTHER


def test_a_closed_region_can_be_opened_by_another(tmp_path: Path) -> None:
    """Closing releases the lock at once."""
    first, second = DirectoryOpener(tmp_path), DirectoryOpener(tmp_path)
    take(first, server=OTHER)
    first.close(REGION, 0)
    first.close(REGION, 0)
    take(second, token=8)


def test_only_the_named_holder_is_evicted(tmp_path: Path, folder: Path) -> None:
    """The eviction of one incarnation does not affect another's hold, and a rejected one changes nothing."""
    old = DirectoryOpener(tmp_path)
    made = opening(server=OTHER)
    old.prepare([made])
    hold = old.acquire(made)
    with pytest.raises(OwnerHeld):
        take(DirectoryOpener(tmp_path), evict=Incarnation("other", 1), token=8)
    assert hold.is_newest()
    take(DirectoryOpener(tmp_path), evict=OTHER, token=8)
    assert owner(folder, 8)["uuid"] == "me"
    assert not hold.is_newest()


def test_after_an_eviction_the_old_holder_cannot_disturb_the_new_one(tmp_path: Path, folder: Path) -> None:
    """Its lock is on an unlinked file; closing it changes nothing, and a third server is still rejected."""
    old, new = DirectoryOpener(tmp_path), DirectoryOpener(tmp_path)
    take(old, server=OTHER)
    take(new, evict=OTHER, token=8)
    old.close(REGION, 0)
    assert sorted(os.listdir(folder)) == ["opened-8", "owner-8", "region.json"]
    with pytest.raises(OwnerHeld) as caught:
        take(DirectoryOpener(tmp_path), server=Incarnation("third", 3), token=9)
    assert caught.value.holder == ME


def test_an_order_overtaken_by_a_later_one_is_rejected(tmp_path: Path, folder: Path) -> None:
    """The server was frozen before it had placed its lock file. Meanwhile a server with a later order has opened the
    region, even if it has closed it again."""
    late, later = DirectoryOpener(tmp_path), DirectoryOpener(tmp_path)
    take(later, token=9)
    later.close(REGION, 0)
    with pytest.raises(Superseded, match="zxid 0x9"):
        take(late, server=OTHER, token=8)
    assert sorted(os.listdir(folder)) == ["opened-9", "owner-9", "region.json"]


def test_the_later_of_two_concurrent_opens_wins(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TS-06: of two concurrent opens the later order wins; the other removes its mark."""
    place = owner_module._place
    first = DirectoryOpener(tmp_path)
    second = opening(server=OTHER, token=8)
    first.prepare([second])

    def overtaken(path: str, me: owner_module.Owner) -> owner_module.DirectoryLock:
        monkeypatch.setattr(owner_module, "_place", place)
        other = place(path, owner_module.Owner("other", 2, 4, 8))
        mine = place(path, me)
        other.release()
        return mine

    monkeypatch.setattr(owner_module, "_place", overtaken)
    with pytest.raises(Superseded):
        take(first, token=7)
    assert sorted(os.listdir(folder)) == ["opened-8", "owner-8", "region.json"]


@pytest.mark.parametrize("moment", ["flock", "pwrite"])
def test_two_daughters_on_one_server_close_the_parent_to_others_at_one_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Both have the token of the split. Formerly one open failed with EAGAIN, and its region opened seconds later."""
    folder.mkdir(parents=True)
    daughters = owner_module.Owner("me", 1, 4, 8)
    module = owner_module.fcntl if moment == "flock" else owner_module.os
    before = getattr(module, moment)

    def amid(*arguments: Any) -> Any:
        monkeypatch.setattr(module, moment, before)
        done = before(*arguments)
        owner_module.fence(str(folder), daughters, None, 7)
        return done

    monkeypatch.setattr(module, moment, amid)
    owner_module.fence(str(folder), daughters, None, 7)
    assert os.listdir(folder) == ["owner-8"]
    assert owner(folder, 8)["uuid"] == "me"


def test_an_unreadable_owner_mark_blocks_the_open(tmp_path: Path, folder: Path) -> None:
    """A holder that cannot be named cannot be proved dead."""
    take(DirectoryOpener(tmp_path), server=OTHER)
    (folder / "owner-7").write_text("")
    with pytest.raises(RegionError, match="does not name the owner"):
        take(DirectoryOpener(tmp_path), evict=OTHER, token=8)


def test_a_removed_mark_means_the_region_is_not_held(tmp_path: Path, folder: Path) -> None:
    """Removing the mark takes the region away."""
    made = opening()
    opener = DirectoryOpener(tmp_path)
    opener.prepare([made])
    hold = opener.acquire(made)
    (folder / "owner-7").unlink()
    assert not hold.is_newest()


@pytest.mark.parametrize("name", ["..", ".", "a/b", "", "-x", "a\0b", "x" * 300])
def test_ids_with_a_meaning_for_the_file_system_are_rejected(tmp_path: Path, name: str) -> None:
    """Ids come over the network."""
    opener = DirectoryOpener(tmp_path)
    for region in (RegionRecord("t", name), RegionRecord(name, "r")):
        with pytest.raises(RegionError, match="cannot be the name"):
            opener.path(region, 0)


def test_many_first_opens_are_synced_once(tmp_path: Path, synced: list[str]) -> None:
    """One sync for all new directories, none for existing ones."""
    opener = DirectoryOpener(tmp_path)
    openings = [opening(region=RegionRecord("t", f"r{number}")) for number in range(50)]
    opener.prepare(openings)
    opener.prepare(openings)
    assert len(synced) == 1


def test_the_real_sync_works_on_this_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system call is used, and its failure is an OSError."""
    monkeypatch.undo()
    directory._sync_file_system(str(tmp_path))
    with pytest.raises(OSError, match="No such file"):
        directory._sync_file_system(str(tmp_path / "missing"))


def test_region_json_keeps_the_record_of_the_first_open(tmp_path: Path, folder: Path) -> None:
    """Later opens do not change it."""
    opener = DirectoryOpener(tmp_path)
    opener.prepare([opening()])
    opener.prepare([opening(region=RegionRecord("t", "r1", start_key="z"))])
    assert json.loads((folder / "region.json").read_text())["start_key"] == "a"


def test_of_many_concurrent_opens_at_most_one_succeeds(tmp_path: Path) -> None:
    """TS-06: never two, on the file system as in the store; the last order succeeds when it is repeated."""
    won: list[int] = []
    start = threading.Barrier(8)
    openers = [DirectoryOpener(tmp_path) for _ in range(8)]

    def contend(number: int) -> None:
        start.wait()
        try:
            take(openers[number], server=Incarnation(str(number), 1), token=number)
        except RegionError:
            return
        won.append(number)

    threads = [threading.Thread(target=contend, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert len(won) <= 1
    for number in won:
        openers[number].close(REGION, 0)
    take(openers[7], server=Incarnation("7", 1), token=8)


def test_a_directory_that_cannot_be_written_is_refused_at_start(tmp_path: Path) -> None:
    """One clear line before anything is registered."""
    (tmp_path / "shared").write_text("")
    with pytest.raises(ConfigError, match="shared directory"):
        DirectoryOpener(tmp_path / "shared")


def opened_before(token: int) -> RegionRecord:
    """Return the region's record after an open under `token`; 0: by a build without tokens."""
    return REGION.with_location(ReplicaLocation(0, "other", 2, 1, token))


def test_a_region_that_was_open_is_never_created_again(tmp_path: Path, folder: Path) -> None:
    """The volume is not mounted, or it is another directory: the open fails, and creates nothing there."""
    for token in (0, 7):
        with pytest.raises(RegionError, match="does not exist, but server other had this region open"):
            take(DirectoryOpener(tmp_path), region=opened_before(token), token=8)
    assert not folder.exists()


def test_an_older_directory_is_refused(tmp_path: Path, folder: Path) -> None:
    """A copy from a backup: its generation is lower than the token in the store; the operator may accept it."""
    opener = DirectoryOpener(tmp_path)
    take(opener, token=7)
    opener.close(REGION, 0)
    with pytest.raises(RegionError, match=r"last opened under zxid 0x7.*under zxid 0x8"):
        take(opener, region=opened_before(8), token=9)
    assert sorted(os.listdir(folder)) == ["opened-7", "owner-7", "region.json"]
    (folder / "opened-8").touch()
    take(opener, region=opened_before(8), token=9)


def test_a_crash_before_opened_was_recorded_is_no_damage(tmp_path: Path, folder: Path) -> None:
    """The generation is written first, so it may be higher than the token in the store, but never lower."""
    opener = DirectoryOpener(tmp_path)
    opener.prepare([opening(token=7)])
    assert (folder / "opened-7").exists()
    take(opener, token=8)
    opener.close(REGION, 0)
    opener.prepare([opening(region=opened_before(8), token=9)])
    take(opener, region=opened_before(8), token=10)


def test_a_directory_of_an_earlier_build_is_adopted(tmp_path: Path, folder: Path) -> None:
    """Without a generation in the directory and a token in the record, region.json suffices, and a generation is
    written."""
    folder.mkdir(parents=True)
    with pytest.raises(RegionError, match=r"has no region.json"):
        take(DirectoryOpener(tmp_path), region=opened_before(0), token=8)
    (folder / "region.json").write_text("{}")
    take(DirectoryOpener(tmp_path), region=opened_before(0), token=8)
    assert (folder / "opened-8").exists()


def test_a_region_without_files_does_not_fail_the_others(tmp_path: Path) -> None:
    """They are prepared together."""
    opener = DirectoryOpener(tmp_path)
    lost = opening(region=opened_before(7), token=8)
    whole = opening(region=RegionRecord("t", "r2"), token=8)
    opener.prepare([lost, whole])
    opener.open(whole)
    with pytest.raises(RegionError):
        opener.open(lost)


def test_few_regions_are_synced_one_by_one(tmp_path: Path, synced: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """At later opens: one sync of each directory up to the limit, one of the file system above."""
    alone: list[str] = []
    monkeypatch.setattr(directory, "sync_folder", alone.append)
    opener = DirectoryOpener(tmp_path)
    regions = [RegionRecord("t", f"r{number}") for number in range(directory.SYNCED_ALONE_MAX + 1)]
    opener.prepare([opening(region=region) for region in regions])
    assert (len(synced), alone) == (1, [])
    opener.prepare([opening(region=region, token=8) for region in regions[1:]])
    assert (len(synced), len(alone)) == (1, directory.SYNCED_ALONE_MAX)
    opener.prepare([opening(region=region, token=9) for region in regions])
    assert (len(synced), len(alone)) == (2, directory.SYNCED_ALONE_MAX)


def test_a_volume_unmounted_while_the_server_runs_is_a_failed_open(tmp_path: Path) -> None:
    """Not even a region that was never open may be created in the directory below the mount point."""
    opener = DirectoryOpener(tmp_path)
    assert opener.shared is not None
    opener.shared.directory_id = opener.shared.create("c").directory_id
    take(opener)
    (tmp_path / "directory.json").rename(tmp_path / "away")
    with pytest.raises(RegionError, match=r"directory.json of shared directory .* has disappeared: mount the volume"):
        take(opener, region=RegionRecord("t", "r2"))
    assert not (tmp_path / "regions" / "t" / "r2").exists()
    opener.shared.create("c")
    with pytest.raises(RegionError, match=r"but was .* when this server started"):
        take(opener, region=RegionRecord("t", "r2"))
