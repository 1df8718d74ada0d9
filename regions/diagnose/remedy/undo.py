"""Decides whether an action of `rk unstick` can be undone, and how (N11). Pure.

An action can be undone while nothing but its own consequences has happened since. The versions in the record show
whether this holds. After an assignment there is exactly one write of the region's record: that of the open. The same
holds for each replica of a fenced server that opened elsewhere. Otherwise the state has changed, and the undo is
refused; the refusal names the command that does the same without the record.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from regions.records.acts.undo import Remedy, UndoRecord
from regions.records.model import RegionRecord, ServerRecord
from regions.records.replica_key import parse_replica_key


class RegionNow(msgspec.Struct, frozen=True):
    """A region's record with its version, and whether the replica concerned has a transition."""

    record: RegionRecord
    version: int
    in_transition: bool = False


class Undo(msgspec.Struct, frozen=True, omit_defaults=True):
    """Way to undo an action. `refusal` says why it cannot be undone; then the other fields have no meaning."""

    undo_id: str
    action: Remedy
    refusal: str = ""
    hint: str = ""
    steps: str = ""
    cost: str = ""
    #: Version of the region's record that the undo of an assignment replaces.
    region_version: int = 0
    #: Replicas that the undo of a fence moves back.
    replicas: tuple[str, ...] = ()
    #: Replicas of the fenced server that stay where they are: key -> reason.
    left: dict[str, str] = {}


def undo(record: UndoRecord, regions: Mapping[str, RegionNow], servers: Mapping[str, ServerRecord]) -> Undo:
    """Return how `record` is undone. `regions` are the present regions by replica key, `servers` the live ones."""
    found = Undo(record.undo_id, record.action)
    if record.undone_ms:
        return _refused(found, "it has been undone already")
    match record.action:
        case Remedy.ASSIGN:
            return _undo_assign(record, found, regions)
        case Remedy.FENCE:
            return _undo_fence(record, found, regions, servers)
        case _:
            why = "a retry leaves nothing to undo: it only began the attempts anew"
            return _refused(found, why, f"rk region unassign {record.region_id}: close the region")


def _refused(found: Undo, why: str, hint: str = "") -> Undo:
    return msgspec.structs.replace(found, refusal=why, hint=hint)


def _undo_assign(record: UndoRecord, found: Undo, regions: Mapping[str, RegionNow]) -> Undo:
    now = next(iter(regions.values()), None)
    if now is None or now.record.is_replaced:
        return _refused(found, f"region {record.region_id} is gone")
    if now.record.unassigned:
        return _refused(found, f"region {record.region_id} has been unassigned since", "nothing needs to be done")
    since = now.version - record.region_version
    if since > 1:
        why = f"region {record.region_id} was assigned and opened, and its record has been written {since - 1} more"
        why += f" time{'' if since == 2 else 's'} since: version {now.version}, and {record.region_version + 1} follows"
        return _refused(
            found,
            f"{why} from the assignment alone",
            f"rk region unassign {record.region_id}: close it all the same",
        )
    steps = "the region's record is set to unassigned; OPEN -> CLOSING -> CLOSED -> (none)"
    return msgspec.structs.replace(found, steps=steps, cost="the region is closed again", region_version=now.version)


def _undo_fence(
    record: UndoRecord, found: Undo, regions: Mapping[str, RegionNow], servers: Mapping[str, ServerRecord]
) -> Undo:
    fenced = record.server
    assert fenced is not None, f"the record {record.undo_id} of a fence names no server"
    server = servers.get(fenced.uuid)
    if server is None:
        why = f"server {fenced.uuid} has not registered again"
        return _refused(found, why, "Start it, or wait until it has registered; then undo.")
    if server.start_code == fenced.start_code:
        return _refused(found, f"server {fenced} is registered still: it was not fenced")
    if record.replicas_dropped:
        why = f"the server had {record.replicas_dropped} replicas, and a record has at most {len(record.replicas)}"
        return _refused(found, why, "rk balance run: regions move to the server until it has its share")
    back, left = [], {}
    for key, version in sorted(record.replicas.items()):
        why = _moved_on(key, version, regions.get(key), fenced.uuid)
        if why:
            left[key] = why
        else:
            back.append(key)
    found = msgspec.structs.replace(found, left=left)
    if not back:
        why = f"none of the server's {len(record.replicas)} replicas is where the fence has brought it"
        return _refused(found, why, "rk balance run: regions move to the server until it has its share")
    steps = f"{len(back)} regions move back to server {fenced.uuid}: OPEN -> CLOSING -> CLOSED -> OFFLINE -> OPENING"
    return msgspec.structs.replace(
        found, steps=steps, cost="each region is unavailable while it moves", replicas=tuple(back)
    )


def _moved_on(key: str, version: int, now: RegionNow | None, uuid: str) -> str:
    """Return what has happened to a replica since the fence, apart from its open on another server; "" if nothing
    else."""
    if now is None or now.record.is_replaced:
        return "it is gone"
    if now.in_transition:
        return "it is in transition"
    location = now.record.location(parse_replica_key(key)[1])
    if location.incarnation is None:
        return "it is closed"
    if location.uuid == uuid:
        return "it is on the server again"
    if now.version != version + 1:
        return f"it has moved since: version {now.version} instead of {version + 1}"
    return ""
