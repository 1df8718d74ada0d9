"""Paths and encodings of all znodes.

Values are JSON, so any ZooKeeper tool can read them; fields with their default value are left out. The paths are below
a configurable root. Transitions are spread over 256 directories by a checksum of the region's id, so that no list of
children becomes long. `regions/records/znode_table.py` lists all znodes.

An operation on a table is one write (OC-01). Create writes the name, the directory, the regions and last the table's
record, which makes the table exist. Alter and rename write the record and names. Delete sets the record to REMOVED and
removes the name. The same write adds `/requests/<id>`, the result for a client that repeats the request. The records of
replaced regions are never removed, and those of deleted tables some time after their rows (MD-06).
"""

from __future__ import annotations

import re
import zlib
from typing import Final, TypeVar

import msgspec
from msgspec.structs import force_setattr

from regions.records.acts.checks import FsckRecord
from regions.records.acts.drills import DrillRecord
from regions.records.acts.grants import FIRST, GrantsRecord
from regions.records.acts.resharding import ReshardingRecord
from regions.records.acts.undo import UndoRecord
from regions.records.alarms import Alarm
from regions.records.forgotten import ForgottenTables
from regions.records.formats import UNANNOUNCED
from regions.records.intents import TabletIntents
from regions.records.model import (
    ActiveRecord,
    BalancerRecord,
    BarRecord,
    ClusterRecord,
    DirectoryRecord,
    EpochRecord,
    FenceRecord,
    MasterRecord,
    MoveBatch,
    PlanRecord,
    RegionRecord,
    ReplicaLocation,
    RequestRecord,
    RunRecord,
    ServerRecord,
    TableRecord,
    TransitionRecord,
)
from regions.records.replica_key import key_in, parse_replica_key, region_in, replica_key
from regions.records.znode_table import server_rights

T = TypeVar("T")

_TABLE_ID: Final = re.compile(rb"[A-Za-z0-9_-][A-Za-z0-9._-]*")
#: Bytes of a damaged value quoted in an error message.
_SHOWN: Final = 40

#: Format of a new cluster, and the lowest that masters of this build leave in `/cluster`. The format is raised when all
#: processes know a higher one (`regions/records/formats.py`).
FORMAT_VERSION: Final = UNANNOUNCED
DEFAULT_ROOT: Final = "/regionkeeper"
#: Names of the directories below /unassigned.
SHARDS: Final = tuple(f"{number:02x}" for number in range(256))
TABLE_NAME_MAX: Final = 255

#: Records that keep the fields of a newer build.
_KEEPING: Final = (ClusterRecord, TableRecord, RegionRecord)

_encoder = msgspec.json.Encoder()
_cluster = msgspec.json.Decoder(ClusterRecord)
_epoch = msgspec.json.Decoder(EpochRecord)
_active = msgspec.json.Decoder(ActiveRecord)
_master = msgspec.json.Decoder(MasterRecord)
_server = msgspec.json.Decoder(ServerRecord)
_table = msgspec.json.Decoder(TableRecord)
_region = msgspec.json.Decoder(RegionRecord)
_transition = msgspec.json.Decoder(TransitionRecord)
_balancer = msgspec.json.Decoder(BalancerRecord)
_plan = msgspec.json.Decoder(PlanRecord)
_alarm = msgspec.json.Decoder(Alarm)
_run = msgspec.json.Decoder(RunRecord)
_drill = msgspec.json.Decoder(DrillRecord)
_fsck = msgspec.json.Decoder(FsckRecord)
_undo = msgspec.json.Decoder(UndoRecord)
_moves = msgspec.json.Decoder(MoveBatch)
_fence = msgspec.json.Decoder(FenceRecord)
_bar = msgspec.json.Decoder(BarRecord)
_request = msgspec.json.Decoder(RequestRecord)
_directory = msgspec.json.Decoder(DirectoryRecord)
_intents = msgspec.json.Decoder(TabletIntents)
_resharding = msgspec.json.Decoder(ReshardingRecord)
_forgotten = msgspec.json.Decoder(ForgottenTables)
_grants = msgspec.json.Decoder(GrantsRecord)


class CorruptZnode(Exception):  # noqa: N818 - named after what it reports
    """Raised for a damaged znode. The caller reports the error and does not change the znode."""

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"{path}: {reason}")


def encode(record: msgspec.Struct) -> bytes:
    """Return the value of a record's znode, including fields of a newer build that the record was read with."""
    newer = record.newer if isinstance(record, _KEEPING) else ""
    if not newer:
        return _encoder.encode(record)
    own = msgspec.to_builtins(record)
    del own["newer"]
    return _encoder.encode({**msgspec.json.decode(newer), **own})


def _decode(decoder: msgspec.json.Decoder[T], data: bytes, path: str) -> T:
    try:
        return decoder.decode(data)
    # ValueError: the text is not UTF-8; RecursionError: it is nested too deeply.
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise CorruptZnode(path, str(error)) from error


R = TypeVar("R", ClusterRecord, TableRecord, RegionRecord)


def _decode_keeping(decoder: msgspec.json.Decoder[R], data: bytes, path: str) -> R:
    """Decode a record that masters of several builds rewrite, and keep the fields that this build does not know.

    A value that equals this build's encoding byte for byte has no other fields, so most records are decoded only once.
    Unknown fields inside a part of the record (a location, for example) are not kept.
    """
    record = _decode(decoder, data, path)
    if record.newer:
        raise CorruptZnode(path, "has a field `newer`, which no build writes")
    if _encoder.encode(record) == data:
        return record
    known = record.__struct_encode_fields__
    newer = {name: value for name, value in msgspec.json.decode(data).items() if name not in known}
    return msgspec.structs.replace(record, newer=_encoder.encode(newer).decode()) if newer else record


def decode_cluster(data: bytes, path: str = "/cluster") -> ClusterRecord:
    """Decode the value of /cluster. Like all decoders here, raise CorruptZnode for a damaged value."""
    return _decode_keeping(_cluster, data, path)


def decode_epoch(data: bytes, path: str = "/epoch") -> EpochRecord:
    """Value of /epoch."""
    return _decode(_epoch, data, path)


def decode_active(data: bytes, path: str = "/active") -> ActiveRecord:
    """Value of /active."""
    return _decode(_active, data, path)


def decode_master(data: bytes, path: str = "/masters") -> MasterRecord:
    """Value of /masters/<uuid>."""
    return _decode(_master, data, path)


def decode_server(data: bytes, path: str = "/servers") -> ServerRecord:
    """Value of /servers/<uuid>."""
    return _decode(_server, data, path)


def decode_name(data: bytes, path: str = "/names") -> str:
    """Value of /names/<name>: a table's id, which is a znode's name itself."""
    if _TABLE_ID.fullmatch(data) is None:
        raise CorruptZnode(path, f"{data[:_SHOWN]!r} is no table id")
    return data.decode("ascii")


def decode_table(data: bytes, path: str = "/tables") -> TableRecord:
    """Value of /tables/<table_id>."""
    return _decode_keeping(_table, data, path)


def decode_region(data: bytes, path: str = "/regions") -> RegionRecord:
    """Value of /regions/<table_id>/<region_id>."""
    return _decode_keeping(_region, data, path)


class RegionDecoder:
    """Decodes many records of regions. Those that a server has opened together share their location.

    The cluster state shares locations as well (`ClusterState.put_region`). But a location that is released as soon as
    it is decoded costs a third of the time, and its memory serves the next one.
    """

    def __init__(self) -> None:
        #: The latest location by the server's uuid.
        self._latest: dict[str, tuple[ReplicaLocation, ...]] = {}

    def decode(self, data: bytes, path: str) -> RegionRecord:
        """Decode the value of /regions/<table_id>/<region_id>."""
        record = decode_region(data, path)
        locations = record.replicas
        count = len(locations)  # a condition with `len` would make compiled code take the tuple apart
        if count == 1:
            uuid = locations[0].uuid
            latest = None if uuid is None else self._latest.get(uuid)
            if latest is not None and latest == locations:
                force_setattr(record, "replicas", latest)
            elif uuid is not None:
                self._latest[uuid] = locations
        return record


def decode_transition(data: bytes, path: str = "/unassigned") -> TransitionRecord:
    """Value of /unassigned/<xx>/<region_id>-<replica>."""
    return _decode(_transition, data, path)


def decode_plan(data: bytes, path: str = "/plans") -> PlanRecord:
    """Value of /plans/<plan_id>."""
    return _decode(_plan, data, path)


def decode_balancer(data: bytes, path: str = "/balancer") -> BalancerRecord:
    """Value of /balancer."""
    return _decode(_balancer, data, path)


def decode_run(data: bytes, path: str = "/runs") -> RunRecord:
    """Value of /runs/<epoch>."""
    return _decode(_run, data, path)


def decode_drill(data: bytes, path: str = "/drills") -> DrillRecord:
    """Value of /drills/<drill_id>."""
    return _decode(_drill, data, path)


def decode_fsck(data: bytes, path: str = "/fsck") -> FsckRecord:
    """Value of /fsck."""
    return _decode(_fsck, data, path)


def decode_undo(data: bytes, path: str = "/undo") -> UndoRecord:
    """Value of /undo/<undo_id>."""
    return _decode(_undo, data, path)


def decode_moves(data: bytes, path: str = "/moves") -> MoveBatch:
    """Value of /moves/<move_id>."""
    return _decode(_moves, data, path)


def decode_intents(data: bytes, path: str = "/intents") -> TabletIntents:
    """Value of /intents/<region_id>."""
    return _decode(_intents, data, path)


def decode_resharding(data: bytes, path: str = "/reshardings") -> ReshardingRecord:
    """Value of /reshardings/<region_id>."""
    return _decode(_resharding, data, path)


def decode_forgotten(data: bytes, path: str = "/forgotten") -> ForgottenTables:
    """Value of /forgotten/<xx>."""
    return _decode(_forgotten, data, path)


def decode_grants(data: bytes, path: str = "/grants") -> GrantsRecord:
    """Value of /grants; empty until the grants are first changed."""
    return _decode(_grants, data, path) if data else FIRST


def decode_fence(data: bytes, path: str = "/fenced") -> FenceRecord:
    """Value of /fenced/<uuid>."""
    return _decode(_fence, data, path)


def decode_bar(data: bytes, path: str = "/barred") -> BarRecord:
    """Value of /barred/<uuid>."""
    return _decode(_bar, data, path)


def decode_request(data: bytes, path: str = "/requests") -> RequestRecord:
    """Value of /requests/<request_id>."""
    return _decode(_request, data, path)


def decode_directory(data: bytes, path: str = "/shared") -> DirectoryRecord:
    """Value of /shared/<kind>."""
    return _decode(_directory, data, path)


def decode_alarm(data: bytes, path: str = "/alarms") -> Alarm:
    """Value of /alarms/<alarm_id>."""
    return _decode(_alarm, data, path)


def shard(region_id: str) -> str:
    """Return the directory of a region's transitions below /unassigned: two hexadecimal digits."""
    return SHARDS[zlib.crc32(region_id.encode()) & 0xFF]


def check_table_name(name: str) -> None:
    """Reject a table name that cannot, or should not, be the name of a znode.

    Raises:
        ValueError: the name is not allowed; the message has the reason.
    """
    if not name or len(name) > TABLE_NAME_MAX:
        raise ValueError(f"a table name has 1 to {TABLE_NAME_MAX} characters, this one {len(name)}")
    if name in (".", "..", "zookeeper"):
        raise ValueError(f"{name!r} is not a table name")
    if ":" in name:
        raise ValueError(f"table name {name!r} has a colon, which ends a table name in commands, as in TABLE:KEY")
    # Surrogates and characters of private use, which no znode may have, are not printable either.
    if not name.isprintable() or "/" in name or "\\" in name:
        wrong = next(one for one in name if one in "/\\" or not one.isprintable())
        raise ValueError(f"table name {name!r} has the character {wrong!r}, which names of znodes must not have")


class Layout:
    """Paths below one root."""

    def __init__(self, root: str = DEFAULT_ROOT) -> None:
        """`root` begins with a slash and does not end with one. "" is the top of the tree."""
        if root and (not root.startswith("/") or root.endswith("/")):
            raise ValueError(f"root {root!r} must begin with a slash and not end with one")
        self.root = root
        self.cluster = f"{root}/cluster"
        self.epoch = f"{root}/epoch"
        self.active = f"{root}/active"
        self.masters = f"{root}/masters"
        self.servers = f"{root}/servers"
        self.draining = f"{root}/draining"
        self.tables = f"{root}/tables"
        self.names = f"{root}/names"
        self.regions = f"{root}/regions"
        self.unassigned = f"{root}/unassigned"
        self.plans = f"{root}/plans"
        self.balancer = f"{root}/balancer"
        self.history = f"{root}/history"
        self.alarms = f"{root}/alarms"
        self.runs = f"{root}/runs"
        self.moves = f"{root}/moves"
        self.intents = f"{root}/intents"
        self.fenced = f"{root}/fenced"
        self.barred = f"{root}/barred"
        self.requests = f"{root}/requests"
        self.shared = f"{root}/shared"
        self.grants = f"{root}/grants"
        self.drills = f"{root}/drills"
        self.fsck = f"{root}/fsck"
        self.undo = f"{root}/undo"
        self.forgotten = f"{root}/forgotten"
        self.reshardings = f"{root}/reshardings"

    def parents(self) -> list[str]:
        """Return the directories that must exist before anything else, in creation order; all are persistent and
        empty."""
        above: list[str] = []
        for part in self.root.strip("/").split("/") if self.root else []:
            above.append(f"{above[-1] if above else ''}/{part}")
        return [
            *above,
            self.masters,
            self.servers,
            self.draining,
            self.tables,
            self.names,
            self.regions,
            self.plans,
            *self.records(),
            self.unassigned,
            *self.shard_paths(),
        ]

    def records(self) -> list[str]:
        """Return the directories added by later versions: the next master creates them in an older cluster."""
        first = [self.history, self.alarms, self.runs, self.moves, self.fenced, self.requests, self.barred]
        return [
            *first,
            self.intents,
            self.drills,
            self.undo,
            self.forgotten,
            self.grants,
            self.reshardings,
            self.shared,
        ]

    def shard_paths(self) -> list[str]:
        """Return the directories that hold the transitions."""
        return [f"{self.unassigned}/{name}" for name in SHARDS]

    def server_rights(self, path: str) -> int:
        """Return the permissions of region servers on a znode (`regions/records/znode_table.py`)."""
        return server_rights(self.root, path)

    def master(self, uuid: str) -> str:
        """Ephemeral of a live master."""
        return f"{self.masters}/{uuid}"

    def server(self, uuid: str) -> str:
        """Ephemeral of a live region server."""
        return f"{self.servers}/{uuid}"

    def draining_mark(self, uuid: str) -> str:
        """Mark of a draining server."""
        return f"{self.draining}/{uuid}"

    def table(self, table_id: str) -> str:
        """A table's record."""
        return f"{self.tables}/{table_id}"

    def name(self, table_name: str) -> str:
        """The znode that makes a table's name unique; its value is the table id."""
        return f"{self.names}/{table_name}"

    def table_regions(self, table_id: str) -> str:
        """Directory of a table's regions."""
        return f"{self.regions}/{table_id}"

    def region(self, table_id: str, region_id: str) -> str:
        """A region's record."""
        return f"{self.regions}/{table_id}/{region_id}"

    def forgotten_ids(self, table_id: str) -> str:
        """Ids of deleted tables whose records are removed; one of 256 znodes."""
        return f"{self.forgotten}/{shard(table_id)}"

    def transition(self, region_id: str, replica: int) -> str:
        """A replica's transition."""
        return f"{self.unassigned}/{shard(region_id)}/{replica_key(region_id, replica)}"

    def transition_of(self, key: str) -> str:
        """The transition of the replica with this key."""
        return f"{self.unassigned}/{shard(region_in(key))}/{key}"

    def plan(self, plan_id: str) -> str:
        """A bulk plan's record."""
        return f"{self.plans}/{plan_id}"

    def segment(self, name: str) -> str:
        """A segment of the history of steps (`regions/cluster/history.py`)."""
        return f"{self.history}/{name}"

    def alarm(self, alarm_id: str) -> str:
        """An alarm of the auditors (`regions/diagnose/invariants.py`)."""
        return f"{self.alarms}/{alarm_id}"

    def run(self, epoch: int, number: int) -> str:
        """Durations of the phases of an event."""
        return f"{self.runs}/{epoch:010d}-{number:06d}"

    def move_batch(self, move_id: str) -> str:
        """A batch of accepted moves."""
        return f"{self.moves}/{move_id}"

    def tablet_intents(self, region_id: str) -> str:
        """Intents about one tablet's members that have not come true."""
        return f"{self.intents}/{region_id}"

    def resharding(self, region_id: str) -> str:
        """A split or merge under way, by the id of its first parent."""
        return f"{self.reshardings}/{region_id}"

    def fence_mark(self, uuid: str) -> str:
        """Record of a fenced server."""
        return f"{self.fenced}/{uuid}"

    def bar(self, uuid: str) -> str:
        """Bar of a fenced server: it gets no regions."""
        return f"{self.barred}/{uuid}"

    def request(self, request_id: str) -> str:
        """The result of a request about a table."""
        return f"{self.requests}/{request_id}"

    def shared_directory(self, kind: str) -> str:
        """The shared directory of all servers of a kind."""
        return f"{self.shared}/{kind}"

    def drill(self, drill_id: str) -> str:
        """Record of a drill."""
        return f"{self.drills}/{drill_id}"

    def undo_record(self, undo_id: str) -> str:
        """Record of an action of `rk unstick`."""
        return f"{self.undo}/{undo_id}"

    def parse_transition(self, path: str) -> tuple[str, int] | None:
        """Return region id and replica of a transition's path, or None for any other path."""
        key = key_in(path, self.unassigned)
        return None if key is None else parse_replica_key(key)
