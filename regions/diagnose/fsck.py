"""Compares the store with every server's own list of replicas, and proposes legal fixes. Pure.

`check` gets a `ClusterView` and returns `Finding`s. A view is read while the cluster works, so some contradictions are
only steps in progress. The caller reads twice and keeps the findings that both views have (`confirmed`).

A finding may have a `Fix`: a step that the transition table allows, or a request to the active master that causes only
such steps. No other fix is proposed. A finding without a legal fix, such as an overlap in the key space, has none.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from regions.assign.resharding.holes import Hole, holes_of
from regions.messages import HostedReplica
from regions.messages.heartbeat import OPEN
from regions.messages.tablets import OwnReplica
from regions.records.kinds import can_open, one_copy, takes_tablets_alone
from regions.records.model import (
    DirectoryRecord,
    Incarnation,
    RegionRecord,
    RegionState,
    ServerRecord,
    TableIntent,
    TableRecord,
    TableState,
    TransitionRecord,
)
from regions.records.replica_key import parse_replica_key, replica_key
from regions.records.znodes import Layout
from regions.transitions.states import Actor, Cause, is_legal

#: A transition is reported this long after its deadline.
LATE_MS: Final = 60_000


class Problem(enum.StrEnum):
    """Kinds of findings, in the order in which they are reported."""

    UNREADABLE = "unreadable znode"
    HOLE = "hole in the key space"
    OVERLAP = "overlap in the key space"
    ACCESS = "access list of a znode"
    SEVERAL_OWNERS = "open on several servers"
    NO_OWNER = "open nowhere"
    ELSEWHERE = "open on another server than the store says"
    NOT_CLOSED = "open, though its table is to be closed"
    OTHER_DIRECTORY = "a server with another shared directory"
    OTHER_OPENING = "open under another token than the store says"
    DAMAGED = "damaged rows"
    TABLET_UNAVAILABLE = "tablet without a leader"
    TABLET_MISMATCH = "replicas contradict each other"
    TABLET_UNDER_REPLICATED = "tablet with too few healthy replicas"
    MISSING_REPLICA = "member without a replica"
    TOMBSTONE = "tombstone of a member"
    REPLICA_FAILED = "replica that does not run"
    UNKNOWN_REGION = "a server has a region that the store does not know"
    ORPHAN_TRANSITION = "transition without a region"
    MISPLACED_TRANSITION = "transition in the wrong directory"
    UNATTENDED = "transition that nobody attends to"
    PARKED = "parked"
    LATE = "late"
    TABLET_UNFINISHED = "tablet that is being made or repaired"
    EXTRA_REPLICA = "replica that no configuration has"
    NAMELESS = "table without its name"
    HALF_TABLE = "half a table"
    LEFTOVER = "files that no table claims"
    ONE_COPY = "fewer copies than the table asks for"
    NO_SHARED_DIRECTORY = "shared table, and no server with a shared directory"
    SILENT_SERVER = "server that does not answer"
    NO_MASTER = "no active master"


#: Findings without harm for clients, or that the cluster is repairing. A finding that makes rows unavailable is an
#: error.
WARNINGS: Final = frozenset(
    {
        Problem.HALF_TABLE,
        Problem.ONE_COPY,
        Problem.NO_SHARED_DIRECTORY,
        Problem.LEFTOVER,
        Problem.TABLET_UNFINISHED,
        Problem.EXTRA_REPLICA,
    }
)


#: Findings of `regions/diagnose/fsck_tablets.py`.
OF_TABLETS: Final = frozenset(
    {
        Problem.TABLET_UNAVAILABLE,
        Problem.TABLET_MISMATCH,
        Problem.TABLET_UNDER_REPLICATED,
        Problem.TABLET_UNFINISHED,
        Problem.MISSING_REPLICA,
        Problem.EXTRA_REPLICA,
        Problem.TOMBSTONE,
        Problem.REPLICA_FAILED,
    }
)


class FixKind(enum.StrEnum):
    """Kinds of fixes."""

    RETRY = "retry"  #: request the master to retry a parked replica: OFFLINE -> OFFLINE
    DELETE = "delete"  #: delete an orphan's znode at its version, by a legal deletion of a master
    PUT_DOWN = "put down"  #: set an orphan's znode of a dead server to OFFLINE, by a legal step of a master
    NAME = "name"  #: create a table's name again if it is free; fenced, with a check of the table
    ACCESS = "access"  #: give a znode the access list of the cluster's credential
    HOLE = "hole"  #: request the master to write the record of a lost region again, or an empty region
    FENCE = "fence"  #: request the master to fence a server: it closes everything, registers again, gets regions again


class Fix(msgspec.Struct, frozen=True, omit_defaults=True):
    """A legal step that helps. It names a transition by path and version, and a server by uuid."""

    kind: FixKind
    preview: str
    path: str = ""
    version: int = -1
    region_id: str = ""
    replica: int = 0
    server: str = ""
    #: States of the step ("" for no znode) and its cause; all "" for requests to the master.
    before: str = ""
    after: str = ""
    cause: str = ""
    #: Start code of the server.
    start_code: int = 0
    #: The table whose name is created again, or that has the hole.
    table_id: str = ""
    #: Bounds of the hole.
    start_key: str = ""
    end_key: str = ""


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """A problem in the cluster. `subject` is a replica key, a table name, a server or a path."""

    problem: str
    subject: str
    text: str
    is_warning: bool = False
    fix: Fix | None = None


class FoundTransition(NamedTuple):
    """A znode below /unassigned. `record` is None for a damaged one."""

    path: str
    record: TransitionRecord | None
    version: int = 0


class ClusterView(msgspec.Struct):
    """The state of a cluster as read from the store and its servers."""

    tables: list[TableRecord] = []
    #: Regions by the directory (table id) in which they were found.
    regions: dict[str, list[RegionRecord]] = {}
    transitions: list[FoundTransition] = []
    servers: list[ServerRecord] = []
    #: Replicas that each server has, by uuid; None if the server has not answered.
    lists: dict[str, list[HostedReplica] | None] = {}
    #: Replicas of tablets, by uuid of their server; None if the server has not answered. No request is sent to servers
    #: that take no tablets.
    replicas: dict[str, list[OwnReplica] | None] = {}
    #: Shared directories in the store, by kind.
    directories: dict[str, DirectoryRecord] = {}
    #: Ids of the regions that are being split or merged.
    parents: set[str] = set()
    #: Id of the shared directory that each server uses, by uuid.
    used_directories: dict[str, str] = {}
    #: Table ids by name.
    names: dict[str, str] = {}
    #: Ids of tables that have files in the shared directories, as servers list them.
    on_disk: list[str] = []
    has_master: bool = True
    now_ms: int = 0
    #: (path, reason) of damaged znodes.
    unreadable: list[tuple[str, str]] = []
    root: str = ""


def check(view: ClusterView) -> list[Finding]:
    """Return all findings of one view, in the order of `Problem`."""
    found = [make_finding(Problem.UNREADABLE, path, f"{path}: {reason}") for path, reason in view.unreadable]
    found += _key_space(view)
    found += _owners(view)
    found += _directories(view)
    found += _transitions(view)
    found += _tables(view)
    found += _leftovers(view)
    for server in view.servers:
        if view.lists.get(server.uuid) is None:
            text = f"server {server.name} is registered and does not answer; its regions could not be compared"
            found.append(make_finding(Problem.SILENT_SERVER, server.uuid, text))
    if not view.has_master:
        found.append(
            make_finding(Problem.NO_MASTER, "", "no master is active: no region is assigned until one is active")
        )
    return in_order(found)


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings in the order of `Problem`."""
    order = {problem.value: number for number, problem in enumerate(Problem)}
    return sorted(findings, key=lambda one: order[one.problem])


def confirmed(first: Sequence[Finding], second: Sequence[Finding]) -> list[Finding]:
    """Return the findings that both views have, from the second view, which has the later versions."""
    before = {(one.problem, one.subject) for one in first}
    return [one for one in second if (one.problem, one.subject) in before]


def make_finding(problem: Problem, subject: str, text: str, fix: Fix | None = None) -> Finding:
    """Return a finding, a warning if its kind is in `WARNINGS`."""
    return Finding(problem.value, subject, text, problem in WARNINGS, fix)


# --- key space --------------------------------------------------------------------------------------------------------


def _key_space(view: ClusterView) -> Iterable[Finding]:
    for table in view.tables:
        if table.state is TableState.REMOVED:
            continue
        there = [one for one in view.regions.get(table.table_id, []) if not one.is_replaced]
        regions = sorted(there, key=lambda one: (one.start_key, one.region_id))
        if not regions:
            text = f"table {table.name} has no regions"
            yield make_finding(Problem.HOLE, table.name, text, _fix_of_hole(view, table, Hole("", "")))
            continue
        holes = {hole.end: hole for hole in holes_of(regions)}
        reached = ""
        ended = False
        for region in regions:
            start = region.start_key
            if ended or start < reached:
                text = f"region {region.region_id} begins at {start!r}, where {reached or 'the end'!r} is reached"
                yield make_finding(Problem.OVERLAP, region.region_id, f"{text} already: its keys are in two regions")
            elif start > reached:
                yield _hole(view, table, holes[start])
            if region.end_key == "":
                ended = True
            elif not ended:
                reached = max(reached, region.end_key)
        if not ended:
            yield _hole(view, table, holes[""])


def _hole(view: ClusterView, table: TableRecord, hole: Hole) -> Finding:
    text = f"no region of {table.name} holds the keys {hole.words}"
    return make_finding(Problem.HOLE, f"{table.name}:{hole.start}", text, _fix_of_hole(view, table, hole))


def _fix_of_hole(view: ClusterView, table: TableRecord, hole: Hole) -> Fix | None:
    """Return the request that closes a hole; None if a record that cannot be read may hold the keys."""
    folder = Layout(view.root).table_regions(table.table_id)
    is_unread = any(path.startswith(f"{folder}/") for path, _ in view.unreadable)
    if table.is_tablet or is_unread or not view.has_master:
        return None
    preview = (
        f"close the hole of table {table.name}, {hole.words}: the master writes the lost region again, or an empty one"
    )
    return Fix(FixKind.HOLE, preview, table_id=table.table_id, start_key=hole.start, end_key=hole.end)


# --- owners -----------------------------------------------------------------------------------------------------------


def _owners(view: ClusterView) -> Iterable[Finding]:
    tables = {one.table_id: one for one in view.tables}
    known = {region.region_id: region for regions in view.regions.values() for region in regions}
    alive = {one.uuid: one for one in view.servers}
    moving = {found.record.key for found in view.transitions if found.record is not None}
    held = _held(view.lists)
    corrupt = _corrupt(view)
    for key, owners in held.items():
        region_id, replica = parse_replica_key(key)
        region = known.get(region_id)
        if region is None and region_id in corrupt:
            continue  # the region's record is reported as unreadable; the replica may belong there
        if region is None:
            text = f"{key} is open on {_names(owners, alive)}; the store has no such region"
            yield make_finding(Problem.UNKNOWN_REGION, key, text, _fence(owners[0], alive, view))
            continue
        stored = region.location(replica).incarnation
        if len(owners) > 1:
            # The store decides: every other server must close the replica.
            strangers = [one for one in owners if stored is None or one != stored.uuid]
            text = f"{key} is open on {_names(owners, alive)}; the store says {_stored(stored, alive)}"
            yield make_finding(Problem.SEVERAL_OWNERS, key, text, _fence(strangers[0], alive, view))
        elif (
            key not in moving
            and region.table_id not in corrupt
            and not _wants_open(tables.get(region.table_id), region)
        ):
            text = f"{key} is open on {_names(owners, alive)}, and nothing is about to close it"
            yield make_finding(Problem.NOT_CLOSED, key, text)
    for region in known.values():
        table = tables.get(region.table_id)
        if table is None or table.is_tablet or not _wants_open(table, region):
            continue  # members of a tablet are open wherever their servers are
        for number in range(table.replication):
            key = replica_key(region.region_id, number)
            if key not in moving:
                yield from _owner(view, key, region.location(number).incarnation, held.get(key, []), alive)


def _owner(
    view: ClusterView, key: str, stored: Incarnation | None, owners: list[str], alive: Mapping[str, ServerRecord]
) -> Iterable[Finding]:
    """Check that a replica at rest that should be open is open on the server that the store names."""
    if len(owners) > 1:
        return  # reported as SEVERAL_OWNERS
    home = None if stored is None else alive.get(stored.uuid)
    if home is None or home.incarnation != stored:
        where = f", though {_names(owners, alive)} has it open" if owners else ""
        waits = "no master is there to assign it" if not view.has_master else "the active master has not assigned it"
        problem = Problem.ELSEWHERE if owners else Problem.NO_OWNER
        yield make_finding(problem, key, f"{key} has no live server in the store{where}; {waits}")
        return
    if home.uuid in owners or view.lists.get(home.uuid) is None:
        return
    if owners:
        text = f"{key} is open on {_names(owners, alive)}; the store says {_stored(stored, alive)}"
        yield make_finding(Problem.ELSEWHERE, key, text, _fence(owners[0], alive, view))
    else:
        text = f"{key} is to be open on {_stored(stored, alive)}, which does not have it"
        yield make_finding(Problem.NO_OWNER, key, text, _fence(home.uuid, alive, view))


def _held(lists: Mapping[str, Sequence[HostedReplica] | None]) -> dict[str, list[str]]:
    held: dict[str, list[str]] = {}
    for uuid in sorted(lists):
        for one in lists[uuid] or ():
            if one.state == OPEN:
                held.setdefault(replica_key(one.region_id, one.replica), []).append(uuid)
    return held


def _wants_open(table: TableRecord | None, region: RegionRecord) -> bool:
    if table is None or table.intent != TableIntent.ENABLED or region.unassigned or region.is_replaced:
        return False
    return table.state in (TableState.RUNNING, TableState.ALTERING)


def _names(uuids: Sequence[str], alive: Mapping[str, ServerRecord]) -> str:
    return " and ".join(f"{alive[one].host}:{alive[one].port}" if one in alive else one for one in uuids)


def _stored(stored: Incarnation | None, alive: Mapping[str, ServerRecord]) -> str:
    return "nowhere" if stored is None else _names([stored.uuid], alive)


def _fence(uuid: str, alive: Mapping[str, ServerRecord], view: ClusterView) -> Fix | None:
    """Return the fix that fences a server, the legal way to make it close a replica or notice a lost one (RF-01)."""
    server = alive.get(uuid)
    if server is None or not view.has_master:
        return None
    count = sum(one.state == OPEN for one in view.lists.get(uuid) or ())
    preview = (
        f"fence server {server.host}:{server.port}: it closes its {count} regions and registers again,"
        " and the master assigns the regions again"
    )
    path = Layout(view.root).fence_mark(uuid)
    return Fix(FixKind.FENCE, preview, path=path, server=uuid, start_code=server.start_code)


# --- shared directories and files -------------------------------------------------------------------------------------


def _directories(view: ClusterView) -> Iterable[Finding]:
    """Yield servers whose shared directory is not the store's, and replicas with another token than the store's."""
    ids = {record.directory_id for record in view.directories.values()}
    for server in view.servers:
        used = view.used_directories.get(server.uuid, "")
        if used and used not in ids:
            named = ", ".join(sorted(ids)) or "none"
            text = f"server {server.name} uses shared directory {used}, the store names {named}"
            yield make_finding(
                Problem.OTHER_DIRECTORY, server.uuid, f"{text}: stop it, and start it with --shared-dir of the others"
            )
    known = {region.region_id: region for regions in view.regions.values() for region in regions}
    moving = {found.record.key for found in view.transitions if found.record is not None}
    for uuid, replicas in view.lists.items():
        for one in replicas or ():
            region = known.get(one.region_id)
            key = replica_key(one.region_id, one.replica)
            if region is None or one.state != OPEN or key in moving:
                continue
            location = region.location(one.replica)
            if location.uuid == uuid and one.token and location.token and one.token != location.token:
                text = f"{key} is open under zxid {one.token:#x}, the store says {location.token:#x}"
                yield make_finding(Problem.OTHER_OPENING, key, text)


# --- transitions ------------------------------------------------------------------------------------------------------


def _transitions(view: ClusterView) -> Iterable[Finding]:
    layout = Layout(view.root)
    tables = {one.table_id: one for one in view.tables}
    known = {region.region_id: region for regions in view.regions.values() for region in regions}
    alive = {one.incarnation for one in view.servers}
    corrupt = _corrupt(view)
    for found in view.transitions:
        record = found.record
        if record is None or {record.region_id, record.table_id} & corrupt:
            continue  # the transition, its region or its table is reported as unreadable
        if found.path != layout.transition(record.region_id, record.replica):
            text = f"{found.path} holds the transition of {record.key}, and masters do not read it there"
            yield make_finding(Problem.MISPLACED_TRANSITION, found.path, text, _fix_of_orphan(found, record, alive))
            continue
        region = known.get(record.region_id)
        table = None if region is None else tables.get(region.table_id)
        missing = _missing(record, region, table)
        if missing:
            text = f"{record.key} is {record.state.value}, and {missing}: every master ignores it"
            yield make_finding(Problem.ORPHAN_TRANSITION, record.key, text, _fix_of_orphan(found, record, alive))
        elif record.parked:
            text = f"{record.key} is parked after {record.attempt} attempts: {record.last_error or 'no reason given'}"
            fix = Fix(
                FixKind.RETRY,
                f"retry {record.key}: OFFLINE -> OFFLINE at version {found.version}",
                region_id=record.region_id,
                replica=record.replica,
            )
            yield make_finding(Problem.PARKED, record.key, text, fix if view.has_master else None)
        else:
            yield from _waiting(view, record, alive)


def _corrupt(view: ClusterView) -> set[str]:
    """Return the ids of tables and regions with damaged records."""
    return {path.rpartition("/")[2] for path, _ in view.unreadable}


def _missing(record: TransitionRecord, region: RegionRecord | None, table: TableRecord | None) -> str:
    """Return why a transition has no replica to belong to; "" if it has one."""
    if region is None:
        return "there is no such region"
    if table is None:
        return "there is no such table"
    if not table.is_tablet and record.replica >= table.replication:
        return "there is no such replica"
    if table.is_tablet and record.replica >= region.next_number:
        return "the tablet's record has never given that number"
    if region.is_replaced:
        return "another region has replaced it"
    return f"table {table.name} has been deleted" if table.finished_ms else ""


def _waiting(view: ClusterView, record: TransitionRecord, alive: set[Incarnation]) -> Iterable[Finding]:
    """Yield findings about a transition that waits for a dead server without a master, or beyond its deadline."""
    closing = record.state in (RegionState.CLOSING, RegionState.CLOSED)
    worker = record.source if closing else record.destination
    if not view.has_master and (worker is None or worker not in alive or record.state is RegionState.CLOSED):
        text = f"{record.key} is {record.state.value} and waits for a master to become active"
        yield make_finding(Problem.UNATTENDED, record.key, text)
    late_ms = view.now_ms - record.deadline_ms
    if record.deadline_ms and late_ms > LATE_MS:
        text = f"{record.key} is {record.state.value}, {late_ms // 1000} s beyond its deadline (rk why)"
        yield make_finding(Problem.LATE, record.key, text)


def _fix_of_orphan(found: FoundTransition, record: TransitionRecord, alive: set[Incarnation]) -> Fix | None:
    """Return the next legal step towards the end of an orphan transition; None if the live server that it names must
    act first."""
    state = record.state
    closing = state is RegionState.CLOSING
    worker = record.source if closing else record.destination
    if state in (RegionState.OPENING, RegionState.OPENED, RegionState.CLOSING) and worker in alive:
        return None
    for cause in (Cause.DO_NOT_REOPEN, Cause.SERVER_DEATH):
        after = None if cause is Cause.DO_NOT_REOPEN else RegionState.OFFLINE
        if is_legal(Actor.MASTER, state, after, cause) and state is not after:
            kind = FixKind.DELETE if after is None else FixKind.PUT_DOWN
            word = "(deleted)" if after is None else after.value
            preview = f"{found.path}: {state.value} -> {word} at version {found.version} ({cause.value})"
            fix = Fix(kind, preview, found.path, found.version, record.region_id, record.replica)
            to = "" if after is None else after.value
            return msgspec.structs.replace(fix, before=state.value, after=to, cause=cause.value)
    return None


# --- tables -----------------------------------------------------------------------------------------------------------


def _tables(view: ClusterView) -> Iterable[Finding]:
    """Yield remains of unfinished table creations, tables with too few copies, and tables without their name."""
    tables = {one.table_id: one for one in view.tables}
    ids = {table_id: name for name, table_id in view.names.items()}
    for name, table_id in view.names.items():
        if table_id not in tables:
            text = f"the name {name!r} refers to table {table_id}, which does not exist"
            yield make_finding(Problem.HALF_TABLE, name, f"{text}; the next active master removes it")
    for table_id, regions in view.regions.items():
        if table_id not in tables:
            text = f"there are {len(regions)} regions of table {table_id}, which does not exist"
            yield make_finding(Problem.HALF_TABLE, table_id, f"{text}; the next active master removes them")
    for table in view.tables:
        note = one_copy(table.kind, table.replication, table.storage)
        if note and table.state is not TableState.REMOVED:
            yield make_finding(Problem.ONE_COPY, table.name, f"table {table.name}: {note}")
        if table.state is not TableState.REMOVED:
            yield from _name_of(table, view, ids)
            yield from _shared_directory_of(table, view)


def _shared_directory_of(table: TableRecord, view: ClusterView) -> Iterable[Finding]:
    """Yield a finding if the table's regions wait for a server that has a shared directory."""
    kinds = [one.kind for one in view.servers if one.group == table.group]
    without = sum(takes_tablets_alone(one) for one in kinds)
    if table.is_tablet or table.intent is not TableIntent.ENABLED or not without:
        return
    if not any(can_open(one, table.kind) for one in kinds):
        text = f"table {table.name} has shared storage, and {without} live servers of its group have no --shared-dir"
        yield make_finding(Problem.NO_SHARED_DIRECTORY, table.name, f"{text}: its regions wait for a server with one")


def _name_of(table: TableRecord, view: ClusterView, ids: Mapping[str, str]) -> Iterable[Finding]:
    """Yield a finding if the table has no znode below /names, so that another table could take its name.

    `ids` has the names by table id.
    """
    path = Layout(view.root).name(table.name)
    if view.names.get(table.name) == table.table_id or path in {unreadable for unreadable, _ in view.unreadable}:
        return
    text = f"table {table.name} ({table.table_id})"
    if table.name in view.names:
        text += f" has lost its name: {table.name!r} refers to table {view.names[table.name]}"
        yield make_finding(Problem.NAMELESS, table.name, f"{text}; rename it by its id (rk table rename)")
        return
    if table.table_id in ids:
        text += f" is registered under the name {ids[table.table_id]!r}"
    else:
        text += " has no znode for its name"
    preview = f"{path} = {table.table_id}, if the name is free and the table has not changed"
    fix = Fix(FixKind.NAME, preview, path=path, table_id=table.table_id)
    yield make_finding(Problem.NAMELESS, table.name, f"{text}: another table could take {table.name!r}", fix)


def _leftovers(view: ClusterView) -> Iterable[Finding]:
    """Yield directories that belong to no table, for example after the store was restored from a backup."""
    tables = {one.table_id: one for one in view.tables}
    known = {*tables, *view.regions, *view.names.values(), *_corrupt(view)}
    for table_id in view.on_disk:
        table = tables.get(table_id)
        if table_id not in known:
            text = f"the shared directory has files of table {table_id}, which is not in the store"
            yield make_finding(
                Problem.LEFTOVER, table_id, f"{text}; check where they come from, then remove them by hand"
            )
        elif table is not None and table.purged_ms:
            text = f"the shared directory has files of table {table.name} ({table_id}), whose rows were removed"
            yield make_finding(Problem.LEFTOVER, table_id, f"{text}; they can be removed by hand")
