"""Every znode that a cluster writes below its root: path, kind, record, writer, and the permissions of region servers.

Source of `docs/reference/znodes.md`.
`regions.records.znodes.Layout` makes the paths; a test checks that each of its paths has a row here.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from coord.wire.opcodes import PERM_CREATE, PERM_DELETE, PERM_READ, PERM_WRITE
from regions.records import model
from regions.records.acts.checks import FsckRecord
from regions.records.acts.drills import DrillRecord
from regions.records.acts.grants import GrantsRecord
from regions.records.acts.resharding import ReshardingRecord
from regions.records.acts.undo import UndoRecord
from regions.records.alarms import Alarm
from regions.records.forgotten import ForgottenTables
from regions.records.intents import TabletIntents


class ZnodeRow(NamedTuple):
    """One kind of znode."""

    #: Path below the root, with placeholders in angle brackets.
    path: str
    #: Name of the attribute or method of `Layout` that makes the path.
    made_by: str
    is_ephemeral: bool
    #: Type of the value, a JSON object; None if the value is not a record (see `holds`).
    record: type | None
    holds: str
    #: Writer, and when the znode is deleted.
    written_by: str


ZNODES: Final[tuple[ZnodeRow, ...]] = (
    ZnodeRow("/cluster", "cluster", False, model.ClusterRecord, "cluster id, format version, mark of a clean shutdown",
          "the first master; the mark by the active master"),
    ZnodeRow("/epoch", "epoch", False, model.EpochRecord, "its *version* is the fencing epoch",
          "each new active master, by compare-and-set"),
    ZnodeRow("/active", "active", True, model.ActiveRecord, "the active master", "the master that wins the election"),
    ZnodeRow("/masters/<uuid>", "master", True, model.MasterRecord, "a live master; servers send heartbeats to all",
          "that master"),
    ZnodeRow("/servers/<uuid>", "server", True, model.ServerRecord, "a live region server",
          "that server; deleted by the active master to fence it"),
    ZnodeRow("/draining/<uuid>", "draining_mark", False, None, "nothing: a server that is to be emptied",
          "active master, at `rk server drain`; deleted by `undrain`"),
    ZnodeRow("/fenced/<uuid>", "fence_mark", False, model.FenceRecord,
          "a server that was fenced, and how long it may still serve",
          "active master, together with deleting the registration; deleted when the lease is over"),
    ZnodeRow("/barred/<uuid>", "bar", False, model.BarRecord, "a server that was fenced and gets no regions",
          "active master, with the fence; deleted by `rk server unfence` or when its time is over"),
    ZnodeRow("/tables/<table_id>", "table", False, model.TableRecord, "a table",
          "active master; deleted some time after the rows of a deleted table"),
    ZnodeRow("/forgotten/<xx>", "forgotten_ids", False, ForgottenTables,
          "ids of deleted tables whose records have been removed",
          "active master, in the multi that deletes the table's record; the oldest ids are dropped"),
    ZnodeRow("/names/<name>", "name", False, None, "the table's id: makes the name unique",
          "active master, in one multi with the table"),
    ZnodeRow("/regions/<table_id>", "table_regions", False, None, "nothing: the directory of a table's regions",
          "active master, with the table"),
    ZnodeRow("/regions/<table_id>/<region_id>", "region", False, model.RegionRecord,
          "a region: key range, and where each replica is open",
          "active master at creation, `unassign` and after a last close; a server in one multi with OPENED"),
    ZnodeRow("/unassigned/<xx>/<region_id>-<replica>", "transition", False, model.TransitionRecord,
          "a transition; exists exactly while the replica is in transition",
          "master and servers, [step by step](../transitions.md)"),
    ZnodeRow("/moves/<move_id>", "move_batch", False, model.MoveBatch,
          "moves that were accepted together and have not all begun",
          "active master, before it answers; deleted when all have begun or are over"),
    ZnodeRow("/intents/<region_id>", "tablet_intents", False, TabletIntents,
          "moves and learners of a tablet that were accepted and have not come true",
          "active master, before it answers; deleted when nothing is left"),
    ZnodeRow("/reshardings/<region_id>", "resharding", False, ReshardingRecord,
          "a split or merge under way, by the id of the first region",
          "active master, before it begins; deleted when the files of the former regions are removed"),
    ZnodeRow("/plans/<plan_id>", "plan", False, model.PlanRecord, "a bulk plan and how far it has been carried out",
          "active master"),
    ZnodeRow("/balancer", "balancer", False, model.BalancerRecord, "whether the balancer may work",
          "active master, at `rk balance`"),
    ZnodeRow("/requests/<request_id>", "request", False, model.RequestRecord,
          "the result of a request about a table, for whoever repeats it",
          "active master, in the write that carries the request out; the oldest are deleted"),
    ZnodeRow("/shared/<kind>", "shared_directory", False, model.DirectoryRecord,
          "identity of the directory that all servers of a kind share", "the first region server of the kind"),
    ZnodeRow("/history/<segment>", "segment", False, None, "steps of transitions, compressed",
          "active master, in the multi of its next step; the oldest are deleted"),
    ZnodeRow("/alarms/<alarm_id>", "alarm", False, Alarm, "a broken rule with the steps that led there",
          "the auditor of any master; deleted by `rk audit --ack`"),
    ZnodeRow("/runs/<epoch>-<number>", "run", False, model.RunRecord,
          "how long the phases of a startup, a failover or a bulk assignment took",
          "active master, once; the oldest are deleted"),
    ZnodeRow("/drills/<drill_id>", "drill", False, DrillRecord, "a drill: what was broken, when, and the verdict",
          "`rk drill`, when its faults begin and at its end; the oldest are deleted"),
    ZnodeRow("/fsck", "fsck", False, FsckRecord, "what the last `rk fsck` has found, for the live page",
          "`rk fsck`, at its end"),
    ZnodeRow("/undo/<undo_id>", "undo_record", False, UndoRecord, "an action of `rk unstick`, for its undo",
          "active master, in the multi that checks what the operator was shown; the oldest are deleted"),
    ZnodeRow("/grants", "grants", False, GrantsRecord,
          "which user has which role; empty: `user:admin` is the admin",
          "active master, by compare-and-set, at `rk grant` and `rk revoke`"),
)  # fmt: skip

#: Permissions of region servers in a secured cluster: (directory, depth below the root) -> permissions. Servers may
#: only read all other znodes. Masters have all permissions, operators read. As in ZooKeeper, the right to create or
#: delete a znode is on its parent. Masters and servers create znodes with these lists, and `rk fsck` checks them.
_SERVER_RIGHTS: Final = {
    # A restarted server replaces the registration of its former start.
    ("servers", 1): PERM_READ | PERM_CREATE | PERM_DELETE,
    ("servers", 2): PERM_READ | PERM_WRITE,
    ("shared", 1): PERM_READ | PERM_CREATE,
    # A server begins a transition when a region cannot stay open; only masters delete transitions.
    ("unassigned", 2): PERM_READ | PERM_CREATE,
    ("unassigned", 3): PERM_READ | PERM_WRITE,
    # With OPENED a server writes the replica's location.
    ("regions", 3): PERM_READ | PERM_WRITE,
}


def server_rights(root: str, path: str) -> int:
    """Return the permissions of region servers on the znode `path` of the cluster at `root`, which is "" for the top of
    the tree."""
    if not path.startswith(f"{root}/"):
        return PERM_READ
    parts = path[len(root) + 1 :].split("/")
    return _SERVER_RIGHTS.get((parts[0], len(parts)), PERM_READ)
