"""The data of one replica on this server."""

from __future__ import annotations

from typing import NamedTuple

from regions.messages import CloseOrder, HostedReplica, OpenOrder
from regions.messages.heartbeat import ReplicaReport
from regions.records.model import RegionRecord, ReplicaLocation, TransitionRecord
from regions.records.replica_key import replica_key
from regionserver.replica.effects import Key, WriteStep
from regionserver.replica.states import SHOWN, Phase


class OrderId(NamedTuple):
    """Identity of the OFFLINE record that an OPEN order carries out.

    Two OPEN orders with the same identity are one order that was sent twice.
    """

    version: int
    epoch: int
    attempt: int
    since_ms: int

    @staticmethod
    def of(order: OpenOrder) -> OrderId:
        """Return the identity of `order`."""
        record = order.transition
        return OrderId(order.version, record.epoch, record.attempt, record.since_ms)


class WaitingOrder(NamedTuple):
    """An order that begins when the order under way has ended."""

    order: OpenOrder | CloseOrder
    #: Epoch of the master that sent the order.
    epoch: int
    ticket: int


class LocalReplica:
    """One replica on this server. Only `Replicas` changes it; see `regionserver.replica.invariants`."""

    def __init__(self, key: Key, region: RegionRecord, now_ms: int) -> None:
        self.key = key
        #: The region's record and its znode's version, as last read or written; -1: unknown.
        self.region = region
        self.region_version = -1
        #: None before the first order and after the replica has gone. Only `Replicas._set_phase` sets it.
        self.phase: Phase | None = None
        #: Time when `phase` was entered.
        self.since_ms = now_ms
        #: The transition as last committed, and its znode's version; -1: the znode is not known to exist.
        self.record: TransitionRecord | None = None
        self.version = -1
        #: Epoch of the master that sent the order in progress.
        self.epoch = 0
        #: zxid of the OPENING step. It orders all opens of the replica on any server.
        self.token = 0
        #: The token with which the opener opened the files. An OPEN order for an open replica only writes the steps:
        #: `token` grows, but the files keep the token of the earlier open.
        self.opened_token = 0
        #: Ticket of the `OrderFinished` effect that ends the order in progress; 0 without an order, or if no reply is
        #: expected.
        self.ticket = 0
        #: The OPEN order that led to the present phase; None after the order was rejected.
        self.order_id: OrderId | None = None
        self.open_timeout_ms = 0
        #: Latest schema version of the table from a master (DD-07), and the latest version passed to the opener.
        self.schema_version = 0
        self.schema_passed = 0
        #: The step in progress. Set when the step is sent, None once it is committed or lost.
        self.step: WriteStep | None = None
        #: Number of the result expected from the store (step, read-back, registration of a holder); 0: none.
        self.step_number = 0
        #: Number of the result expected from the opener; 0: none.
        self.job_number = 0
        #: Number of the result expected for ReadOwner; 0: none.
        self.review_number = 0
        #: Rejections of the step in progress. A step that is committed or given up ends the count.
        self.refusals = 0
        #: Failed attempts to close the replica while DROPPING.
        self.drops = 0
        #: True from the opener's successful open until its successful close. After a failed close the replica may still
        #: be open.
        self.is_open = False
        #: The announced location, or the one being announced.
        self.location: ReplicaLocation | None = None
        #: Time when OPENING was last written.
        self.progress_ms = 0
        #: Latest error, for the operator.
        self.error = ""
        #: Damage that the opener found in the rows; "" if none.
        self.damage = ""
        self.waiting: WaitingOrder | None = None

    def is_held(self) -> bool:
        """Return True if the opener has the replica open, or is opening or closing it."""
        return self.is_open or self.job_number != 0

    def __str__(self) -> str:
        return replica_key(*self.key)

    @property
    def cause_id(self) -> str:
        """Return the cause id of the replica's transition, or ""."""
        record = self.record or (None if self.step is None else self.step.record)
        return "" if record is None or record.origin is None else record.origin.cause_id

    def report(self) -> ReplicaReport:
        """Return the replica as a heartbeat reports it."""
        assert self.phase is not None, f"{self} is reported, but is not on this server"
        shown = SHOWN[self.phase]
        region_id, number = self.key
        return ReplicaReport(region_id, self.region.table_id, number, shown, self.schema_version, damage=self.damage)

    def hosted(self) -> HostedReplica:
        """Return the replica as `rk server regions` shows it."""
        assert self.phase is not None, f"{self} is listed, but is not on this server"
        return HostedReplica(
            self.key[0],
            self.region.table_id,
            self.key[1],
            SHOWN[self.phase],
            self.since_ms,
            self.damage or self.error,
            schema_version=self.schema_version,
            token=0 if self.location is None else self.location.token,
        )

    def failed_open(self, now_ms: int) -> HostedReplica:
        """Return the failure to open the replica as `rk server regions` shows it."""
        region_id, number = self.key
        return HostedReplica(region_id, self.region.table_id, number, "FAILED", now_ms, self.error, schema_version=-1)
