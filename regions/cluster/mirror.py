"""A standby's copy of the store: what it would load as the active master, kept up to date (FW-01, MD-07).

Pure. The shell (`master/standby/watcher.py`) watches the store's directories, hands each event to `changed` or
`gone`, reads what
they and `begin` ask for, many znodes at a time, and hands the answers to `listed`, `seen` and `gone`. One session's
events and answers arrive in the order of the store's states, so the latest word about a znode is the truest and no
version has to be compared. Everything else may come in any order: a region before its table, a transition before its
region; such a record waits for the other.

*Complete* is a mirror that has read everything that was there when it began. After a gap in the events a new one has to
be begun. A complete mirror of which nothing is left to be read holds what `Assigner.load` would make of the store.

    changed, gone          a znode is to be read; it is no more
    begin, listed, seen    what is there
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from regions.cluster.entities import Region, Replica
from regions.cluster.state import ClusterState
from regions.records.model import (
    FenceRecord,
    RegionRecord,
    ServerRecord,
    TableRecord,
    TabletState,
    TransitionRecord,
)
from regions.records.replica_key import replica_key
from regions.records.znodes import (
    CorruptZnode,
    Layout,
    decode_bar,
    decode_fence,
    decode_region,
    decode_server,
    decode_table,
    decode_transition,
)

#: Regions that are no more; a cold load takes no notice of them either.
_ENDED: Final = (TabletState.DELETED, TabletState.REPLACED)


class StandbyMirror:
    """See the module docstring. A path that ends in a slash asks for the names below it."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self.world = ClusterState()
        #: Everything that there was at the beginning has been read.
        self.is_complete = False
        #: Of what there was at the beginning: not read yet.
        self._missing: set[str] = set()
        #: Regions whose table is not known (yet), and transitions whose region is not.
        self._early_regions: dict[str, dict[str, tuple[RegionRecord, int]]] = {}
        self._early_transitions: dict[str, dict[int, tuple[TransitionRecord, int]]] = {}
        #: Removed tables of which nothing is open any more.
        self._finished: set[str] = set()
        self._registered: dict[str, ServerRecord] = {}
        self._draining: set[str] = set()
        self._fences: dict[str, FenceRecord] = {}
        self._servers_changed = False
        #: What could not be understood: left alone, as at a load.
        self.troubles: list[CorruptZnode] = []

    def begin(self) -> list[str]:
        """What to read first. Watches must be in force by then."""
        layout = self._layout
        first = (layout.servers, layout.draining, layout.fenced, layout.barred, layout.tables, *layout.shard_paths())
        return self._to_read(f"{path}/" for path in first)

    def _to_read(self, paths: Iterable[str]) -> list[str]:
        asked = list(paths)
        if not self.is_complete:
            self._missing.update(asked)
        return asked

    # --- events -------------------------------------------------------------------------------------------------------

    def is_record(self, path: str) -> bool:
        """Whether this is the path of a table, a region, a server or a mark, and not of a directory."""
        layout = self._layout
        parent, _, _ = path.rpartition("/")
        if parent.startswith(layout.regions):
            return len(parent) > len(layout.regions)
        return parent in (layout.tables, layout.servers, layout.draining, layout.fenced, layout.barred)

    def gone(self, path: str) -> None:
        """A znode was deleted, or is not there."""
        layout = self._layout
        self._missing.discard(path)
        parent, _, name = path.rpartition("/")
        if parent.startswith(layout.unassigned):
            found = layout.parse_transition(path)
            if found is not None:
                self._transition(*found, None, -1, 0)
        elif parent.startswith(layout.regions):
            self._early_regions.get(parent[len(layout.regions) + 1 :], {}).pop(name, None)
            self._drop_region(name)
        elif parent == layout.tables:
            self._finished.discard(name)
            self._drop_table(name)
        else:
            self._registration_gone(parent, name)

    def _registration_gone(self, parent: str, name: str) -> None:
        layout = self._layout
        if parent == layout.servers:
            self._registered.pop(name, None)
        elif parent == layout.draining:
            self._draining.discard(name)
        elif parent == layout.fenced:
            self._fences.pop(name, None)
        elif parent == layout.barred:
            self.world.bars.pop(name, None)
        self._servers_changed = True

    # --- answers ------------------------------------------------------------------------------------------------------

    def listed(self, directory: str, names: list[str]) -> list[str]:
        """The names below `directory` (without a slash at its end); returns what to read because of them."""
        self._missing.discard(f"{directory}/")
        if directory == self._layout.draining:
            self._draining.update(names)
            self._servers_changed = True
            return []
        return self._to_read(f"{directory}/{name}" for name in names)

    def seen(self, path: str, data: bytes, version: int, now_ms: int) -> list[str]:
        """A znode was read; returns what to read because of it."""
        layout = self._layout
        self._missing.discard(path)
        parent, _, name = path.rpartition("/")
        try:
            if parent.startswith(layout.regions):
                self._region(decode_region(data, path), version)
            elif parent.startswith(layout.unassigned):
                record = decode_transition(data, path)
                self._transition(record.region_id, record.replica, record, version, now_ms)
            elif parent == layout.tables:
                return self._table(decode_table(data, path), version)
            else:
                self._registration(parent, name, data, path)
        except CorruptZnode as error:
            self.troubles.append(error)
            self.gone(path)
        return []

    def _registration(self, parent: str, name: str, data: bytes, path: str) -> None:
        layout = self._layout
        if parent == layout.servers:
            self._registered[name] = decode_server(data, path)
        elif parent == layout.draining:
            self._draining.add(name)
        elif parent == layout.fenced:
            self._fences[name] = decode_fence(data, path)
        elif parent == layout.barred:
            self.world.bars[name] = decode_bar(data, path)
        self._servers_changed = True

    def finish_batch(self) -> None:
        """After the last word of an answer, or an event: bring the servers in line, and see whether that was all."""
        if self._servers_changed:
            self._servers_changed = False
            self._update_servers()
        if not self.is_complete and not self._missing:
            self.is_complete = True

    def _update_servers(self) -> None:
        """Those who are registered live, and those who are fenced may still be serving (X10)."""
        fenced = {uuid: mark for uuid, mark in self._fences.items() if uuid not in self._registered}
        alive = {**self._registered, **{uuid: mark.server for uuid, mark in fenced.items()}}
        self.world.set_servers(alive, self._draining)
        for uuid, server in self.world.servers.items():
            server.fencing = (fenced[uuid].reason or "by an earlier master") if uuid in fenced else ""

    # --- tables and regions -------------------------------------------------------------------------------------------

    def _table(self, record: TableRecord, version: int) -> list[str]:
        table_id = record.table_id
        if record.finished_ms:
            self._drop_table(table_id)
            self._finished.add(table_id)
            return []
        is_new = table_id not in self.world.tables
        was_finished = table_id in self._finished
        self._finished.discard(table_id)
        self.world.put_table(record, version)
        for region, region_version in self._early_regions.pop(table_id, {}).values():
            self._region(region, region_version)
        if is_new and (was_finished or not self.is_complete):
            # Brought back: what was told of its regions while it was deleted was not kept.
            return self._to_read([f"{self._layout.table_regions(table_id)}/"])
        return []  # its regions were made before it, while we watched

    def _drop_table(self, table_id: str) -> None:
        self._early_regions.pop(table_id, None)
        table = self.world.tables.get(table_id)
        if table is not None:
            for region_id in list(table.regions):
                self._drop_region(region_id)
            self.world.drop_table(table)

    def _region(self, record: RegionRecord, version: int) -> None:
        if record.state in _ENDED:
            self._drop_region(record.region_id)
            return
        if record.table_id not in self.world.tables:
            if record.table_id not in self._finished:
                self._early_regions.setdefault(record.table_id, {})[record.region_id] = (record, version)
            return
        region = self.world.put_region(record, version)
        assert region is not None, record.region_id
        for number, (transition, at) in self._early_transitions.pop(record.region_id, {}).items():
            self._transition(record.region_id, number, transition, at, 0)
        for replica in region.replicas:
            self._place(replica)

    def _drop_region(self, region_id: str) -> None:
        region = self.world.regions.get(region_id)
        if region is None:
            return
        self._keep_transitions(region)
        self.world.drop_region(region)

    def _keep_transitions(self, region: Region) -> None:
        """The region's record is gone; its transitions are znodes of their own, and it may come again."""
        for replica in region.replicas:
            if replica.transition is not None:
                early = self._early_transitions.setdefault(region.record.region_id, {})
                early[replica.number] = (replica.transition, replica.version)

    # --- transitions --------------------------------------------------------------------------------------------------

    def _transition(
        self, region_id: str, number: int, record: TransitionRecord | None, version: int, now_ms: int
    ) -> None:
        replica = self.world.replicas.get(replica_key(region_id, number))
        if replica is None:
            early = self._early_transitions.setdefault(region_id, {})
            if record is not None:
                early[number] = (record, version)
            else:
                early.pop(number, None)
                if not early:
                    del self._early_transitions[region_id]
            return
        if record is None and replica.transition is None:
            return  # it was over before it could be read, as most are while many regions move
        self.world.set_transition(replica, record, version, now_ms)
        self._place(replica)

    def _place(self, replica: Replica) -> None:
        """Where the replica is, by its region's record and its transition, as `Assigner.load` takes it."""
        location = replica.region.record.location(replica.number)
        replica.last_uuid = location.uuid
        self.world.set_home(replica, location.incarnation)


class ReadBatch:
    """Paths that were taken together to be read."""

    __slots__ = ("oldest", "paths")

    def __init__(self, paths: list[str], oldest: int) -> None:
        self.paths = paths
        #: Number of the oldest of them.
        self.oldest = oldest


class Unread:
    """Znodes that have changed and are still to be read, oldest first, each once however often it changed.

    `mark` names the present moment; `is_past(mark)` says that everything that was to be read then has been read.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, int] = {}
        self._asked: list[ReadBatch] = []
        self._number = 0

    def __len__(self) -> int:
        return len(self._waiting) + sum(len(batch.paths) for batch in self._asked)

    @property
    def waiting(self) -> int:
        """Those that nobody has asked for yet."""
        return len(self._waiting)

    @property
    def in_flight(self) -> int:
        """Batches that were asked for and are not answered."""
        return len(self._asked)

    def put(self, path: str) -> None:
        """This one is to be read. Asked for already, it is asked for again: the answer may be older."""
        if path not in self._waiting:
            self._number += 1
            self._waiting[path] = self._number

    def discard(self, path: str) -> None:
        """This one is no more."""
        self._waiting.pop(path, None)

    def take(self, most: int) -> ReadBatch | None:
        """The oldest, to be asked for now; None if there are none."""
        if not self._waiting:
            return None
        paths = []
        oldest = next(iter(self._waiting.values()))
        for path in self._waiting:
            paths.append(path)
            if len(paths) == most:
                break
        for path in paths:
            del self._waiting[path]
        batch = ReadBatch(paths, oldest)
        self._asked.append(batch)
        return batch

    def answered(self, batch: ReadBatch) -> None:
        """The answer is here and has been taken in."""
        self._asked.remove(batch)

    def mark(self) -> int:
        """Now."""
        return self._number

    def is_past(self, mark: int) -> bool:
        """Whether all that was to be read at `mark` has been read."""
        oldest = next(iter(self._waiting.values()), self._number + 1)
        return oldest > mark and all(batch.oldest > mark for batch in self._asked)

    def paths(self) -> list[str]:
        """All of them."""
        return [*self._waiting, *(path for batch in self._asked for path in batch.paths)]
