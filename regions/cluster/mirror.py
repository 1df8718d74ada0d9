"""A standby's copy of the state that it would load as the active master, kept up to date (FW-01, MD-07). Pure.

The caller (`master/standby/watcher.py`) watches the store's directories. It reads the paths that `begin` and `answered`
return and the znodes that have changed, many at a time, and passes the results to these methods:

    begin      returns the first paths to read
    answered   znodes, and names in directories, were read
    next_paths returns further paths to read, of a table with many regions
    gone       a znode was deleted
    ended      transitions were deleted

Events and replies of one session arrive in the order of the store's states. So the latest event or reply about a znode
is the newest, and no versions are compared. Different znodes may arrive in any order: a region before its table, or a
transition before its region. Such a record waits for the other one.

A mirror is *complete* when it has read everything that existed when it began. After a gap in the events a new mirror is
needed. A complete mirror without unread znodes equals the result of `Assigner.load`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from coord.wire.records import EVENT_DELETED
from regions.cluster.entities import Region, Replica
from regions.cluster.state import ClusterState
from regions.records.model import (
    FenceRecord,
    Incarnation,
    RegionRecord,
    ServerRecord,
    TableRecord,
    TabletState,
    TransitionRecord,
)
from regions.records.replica_key import has_key, key_begin, replica_key
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

#: Regions that have ended. `Assigner.load` ignores them, too.
_ENDED: Final = (TabletState.DELETED, TabletState.REPLACED)
#: Regions of one table whose paths are returned at once (`next_paths`).
NAMES_AT_ONCE: Final = 2_000


class StandbyMirror:
    """See the module docstring. A path with a trailing slash means the names in that directory."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self.world = ClusterState()
        #: True when everything that existed at the beginning has been read.
        self.is_complete = False
        #: Paths that existed at the beginning and have not been read yet.
        self._missing: set[str] = set()
        #: Directories of tables with many regions, and the names in reverse order that `next_paths` will return.
        self._names: list[tuple[str, list[str]]] = []
        #: Regions that wait for their table, and transitions that wait for their region.
        self._early_regions: dict[str, dict[str, tuple[RegionRecord, int]]] = {}
        self._early_transitions: dict[str, dict[int, tuple[TransitionRecord, int]]] = {}
        #: Removed tables whose regions are all closed.
        self._finished: set[str] = set()
        self._registered: dict[str, ServerRecord] = {}
        self._draining: set[str] = set()
        self._fences: dict[str, FenceRecord] = {}
        self._servers_changed = False
        #: Replicas that were open on a server when it died, by server. The only reader removes them.
        self.left_behind: dict[Incarnation, list[str]] = {}
        #: Damaged znodes, which are ignored, as by `Assigner.load`.
        self.troubles: list[CorruptZnode] = []

    def begin(self) -> list[str]:
        """Return the first paths to read. The watches must be set before."""
        layout = self._layout
        first = (layout.servers, layout.draining, layout.fenced, layout.barred, layout.tables, *layout.shard_paths())
        return self._to_read(f"{path}/" for path in first)

    def _to_read(self, paths: Iterable[str]) -> list[str]:
        asked = list(paths)
        if not self.is_complete:
            self._missing.update(asked)
        return asked

    def tablet_transitions(self) -> list[tuple[TransitionRecord, int]]:
        """Return the transitions of tablets' members, which have no replicas in the cluster state.

        Those of tablets that were split or merged are among them: their replicas are being deleted.
        """
        found = []
        for early in self._early_transitions.values():
            for record, version in early.values():
                table = self.world.tables.get(record.table_id)
                if table is not None and table.record.is_tablet:
                    found.append((record, version))
        return found

    # --- events -------------------------------------------------------------------------------------------------------

    def is_record(self, path: str) -> bool:
        """Return True for the path of a table, region, server, drain, fence or bar; False for a directory."""
        layout = self._layout
        parent, _, _ = path.rpartition("/")
        if parent.startswith(layout.regions):
            return len(parent) > len(layout.regions)
        return parent in (layout.tables, layout.servers, layout.draining, layout.fenced, layout.barred)

    def of_records(self, events: list[tuple[int, str, int]]) -> list[tuple[int, str, int]]:
        """Return the events (event type, path, zxid) of records, without those of directories."""
        return [event for event in events if self.is_record(event[1])]

    def ended(self, paths: list[str]) -> None:
        """Handle transitions that were deleted. While many regions move, most end before they are read."""
        begin, replicas = key_begin(self._layout.unassigned), self.world.replicas
        for path in paths:
            replica = replicas.get(path[begin:])
            if replica is None or replica.transition is not None or path in self._missing:
                self.gone(path)

    def gone(self, path: str) -> None:
        """Handle a znode that was deleted or does not exist."""
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

    # --- replies ------------------------------------------------------------------------------------------------------

    def answered(self, paths: list[str], results: list[object], now_ms: int) -> list[str]:
        """Handle the results of a multi-read of `paths`: for each path a list of names (directory), value and stat, or
        NoNode. Return the further paths to read."""
        more: list[str] = []
        for path, result in zip(paths, results, strict=True):
            if path.endswith("/"):
                more += self._listed(path[:-1], sorted(result) if isinstance(result, list) else [])
            elif isinstance(result, tuple):
                data, stat = result
                more += self._seen(path, data, stat.version, now_ms)
            else:
                self.gone(path)
        return more

    def _listed(self, directory: str, names: list[str]) -> list[str]:
        """Handle the names in `directory` (without a trailing slash). Return the paths to read."""
        if len(names) > NAMES_AT_ONCE and not self.is_complete and directory.startswith(f"{self._layout.regions}/"):
            names.reverse()
            self._names.append((directory, names))
            return []
        self._missing.discard(f"{directory}/")
        if directory == self._layout.draining:
            self._draining.update(names)
            self._servers_changed = True
            return []
        return self._to_read(f"{directory}/{name}" for name in names)

    def next_paths(self) -> list[str]:
        """Return the next paths of a table with more regions than one turn should handle, [] without such a table.

        The caller asks again when it has few paths left. The mirror becomes complete only afterwards.
        """
        if not self._names:
            return []
        directory, names = self._names[-1]
        part = names[-NAMES_AT_ONCE:]
        del names[-NAMES_AT_ONCE:]
        asked = self._to_read(f"{directory}/{name}" for name in reversed(part))
        if not names:
            self._names.pop()
            self._missing.discard(f"{directory}/")
        return asked

    def _seen(self, path: str, data: bytes, version: int, now_ms: int) -> list[str]:
        """Handle a znode that was read. Return the paths to read because of it."""
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
        """Finish a reply or an event: update the servers, and set `is_complete` if everything has been read."""
        if self._servers_changed:
            self._servers_changed = False
            self._update_servers()
        if not self.is_complete and not self._missing:
            self.is_complete = True

    def _update_servers(self) -> None:
        """Set the live servers: registered ones, and fenced ones, which may still serve (X10)."""
        fenced = {uuid: mark for uuid, mark in self._fences.items() if uuid not in self._registered}
        alive = {**self._registered, **{uuid: mark.server for uuid, mark in fenced.items()}}
        for uuid, server in self.world.servers.items() if self.is_complete else ():
            if server.open and (uuid not in alive or alive[uuid].incarnation != server.incarnation):
                self.left_behind[server.incarnation] = list(server.open)
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
            # The table was undeleted. Events of its regions were ignored while it was deleted.
            return self._to_read([f"{self._layout.table_regions(table_id)}/"])
        return []  # the regions of a new table are created before it, so their events have arrived

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
        is_known = record.region_id in self.world.regions
        region = self.world.put_region(record, version)
        assert region is not None, record.region_id
        for number, (transition, at) in self._early_transitions.pop(record.region_id, {}).items():
            self._transition(record.region_id, number, transition, at, 0)
        if is_known:  # `put_region` has placed the replicas of a new one
            for replica in region.replicas:
                self._place(replica)

    def _drop_region(self, region_id: str) -> None:
        region = self.world.regions.get(region_id)
        if region is None:
            return
        self._keep_transitions(region)
        self.world.drop_region(region)

    def _keep_transitions(self, region: Region) -> None:
        """Keep the transitions of a dropped region: they are separate znodes, and the region may appear again."""
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
            return  # the transition ended before it was read, as most do while many regions move
        self.world.set_transition(replica, record, version, now_ms)
        self._place(replica)

    def _place(self, replica: Replica) -> None:
        """Set the replica's location from its region's record and its transition, as `Assigner.load` does."""
        location = replica.region.record.location(replica.number)
        replica.last_uuid = location.uuid
        self.world.set_home(replica, location.incarnation)


class ReadBatch:
    """Paths that are read in one request."""

    __slots__ = ("oldest", "paths")

    def __init__(self, paths: list[str], oldest: int) -> None:
        self.paths = paths
        #: Number of the oldest path.
        self.oldest = oldest


def of_transitions(events: list[tuple[int, str, int]], directory: str) -> list[tuple[int, str, int]]:
    """Return the events (event type, path, zxid) of transitions below `directory`, without events of the partition
    directories."""
    begin = key_begin(directory)
    return [event for event in events if has_key(event[1], begin) and event[1].startswith(directory)]


class Unread:
    """Queue of changed znodes that have not been read yet, oldest first, each at most once.

    `mark` returns the current position. `is_past(mark)` is True when every znode queued at that position has been read.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, int] = {}
        self._asked: list[ReadBatch] = []
        self._number = 0

    def __len__(self) -> int:
        return len(self._waiting) + sum(len(batch.paths) for batch in self._asked)

    @property
    def waiting(self) -> int:
        """Number of znodes whose read has not been sent."""
        return len(self._waiting)

    @property
    def in_flight(self) -> int:
        """Number of reads without a reply."""
        return len(self._asked)

    def put(self, path: str) -> None:
        """Queue a znode. If a read of it is in flight, read it again, because that reply may be older."""
        if path not in self._waiting:
            self._number += 1
            self._waiting[path] = self._number

    def discard(self, path: str) -> None:
        """Remove a deleted znode."""
        self._waiting.pop(path, None)

    def see(self, events: list[tuple[int, str, int]]) -> list[str]:
        """Queue the znodes that events (event type, path, zxid) report as changed. Return the paths of deleted
        znodes."""
        gone: list[str] = []
        for event_type, path, _ in events:
            if event_type == EVENT_DELETED:
                self.discard(path)
                gone.append(path)
            else:
                self.put(path)
        return gone

    def take(self, most: int) -> ReadBatch | None:
        """Remove and return up to `most` of the oldest znodes for one read; None if the queue is empty."""
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
        """Remove a batch whose reply has been applied."""
        assert batch in self._asked, "a batch is answered twice"
        self._asked.remove(batch)

    def mark(self) -> int:
        """Return the current position."""
        return self._number

    def is_past(self, mark: int) -> bool:
        """Return True if every znode queued at position `mark` has been read."""
        oldest = next(iter(self._waiting.values()), self._number + 1)
        return oldest > mark and all(batch.oldest > mark for batch in self._asked)

    def among(self, paths: Iterable[str]) -> set[str]:
        """Return those of the paths that have not been read."""
        asked = {path for batch in self._asked for path in batch.paths}
        return {path for path in paths if path in self._waiting or path in asked}

    def paths(self) -> list[str]:
        """Return the paths of all znodes that have not been read."""
        return [*self._waiting, *(path for batch in self._asked for path in batch.paths)]
