"""A small store with servers that carry out the assigner's effects one by one.

The store is a dict of znodes with versions. A server opens and closes at once, or as the test says. Every write below
/unassigned is checked against the transition table and its version, as the real writers do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from regions.assign.assigner import Assigner
from regions.cluster import effects as fx
from regions.cluster import events as ev
from regions.cluster.limits import AssignerConfig
from regions.diagnose.live.work_in_progress import look
from regions.diagnose.problems import problems
from regions.messages import AlterResult, CloseOrder, OpenOrder, OrderOutcome, OrderResult
from regions.records.model import (
    BarRecord,
    FenceRecord,
    Incarnation,
    Intent,
    Move,
    MoveBatch,
    RegionRecord,
    RegionState,
    ReplicaLocation,
    ServerRecord,
    TableIntent,
    TableRecord,
    TableState,
    TabletState,
    TransitionRecord,
    WorkOrigin,
)
from regions.transitions.states import Actor, Cause, check

TABLE = TableRecord("t1", "orders", regions=1)


def server(uuid: str, start_code: int = 1, **more: object) -> ServerRecord:
    """Return a server record; host is the uuid."""
    return msgspec.convert({"uuid": uuid, "host": uuid, "port": 1, "start_code": start_code, **more}, type=ServerRecord)


def at(uuid: str, start_code: int = 1) -> Incarnation:
    """Return a start of a server."""
    return Incarnation(uuid, start_code)


def region(name: str = "r1", on: Incarnation | None = None, table_id: str = "t1") -> RegionRecord:
    """Return a region, open on `on` if given."""
    replicas = () if on is None else (ReplicaLocation(0, on.uuid, on.start_code, 1),)
    return RegionRecord(table_id, name, replicas=replicas)


def transition(
    state: RegionState,
    source: Incarnation | None = None,
    destination: Incarnation | None = None,
    name: str = "r1",
    **more: object,
) -> TransitionRecord:
    """Return a transition of replica 0."""
    record = TransitionRecord(name, "t1", 0, state, source, destination, origin=WorkOrigin("e0-1"))
    return msgspec.structs.replace(record, **more)


def caused(effects: list[fx.Effect]) -> list[fx.Effect]:
    """Check that every effect names the cause of its work. Return the effects."""
    for effect in effects:
        assert all(fx.cause_ids(effect)), f"without a cause: {effect}"
    return effects


Opening = Callable[[str, OpenOrder], "OrderResult | None"]


class ValidatedAssigner:
    """An assigner whose invariants are all checked after every event, tick and selection.

    It is not a subclass, because a compiled class has none.
    """

    def __init__(self, epoch: int, config: AssignerConfig | None = None) -> None:
        self._assigner = Assigner(epoch, config)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._assigner, name)

    def begin(self, now_ms: int, *, startup: bool = False) -> None:
        self._assigner.begin(now_ms, startup=startup)
        self._assigner.validate()

    def handle(self, event: ev.Event, now_ms: int, origin: WorkOrigin | None = None) -> None:
        self._assigner.handle(event, now_ms, origin)
        self._assigner.validate()

    def tick(self, now_ms: int) -> None:
        self._assigner.tick(now_ms)
        self._assigner.validate()

    def take(self, now_ms: int) -> list[fx.Effect]:
        taken = self._assigner.take(now_ms)
        self._assigner.validate()
        return taken


class ModelCluster:
    """The store, the servers, and one active master."""

    def __init__(self, config: AssignerConfig | None = None, epoch: int = 1) -> None:
        self.now = 1_000_000
        self.config = config or AssignerConfig(bulk_min=1000)
        self.tables: dict[str, tuple[TableRecord, int]] = {"t1": (TABLE, 0)}
        self.regions: dict[str, tuple[RegionRecord, int]] = {}
        self.unassigned: dict[str, tuple[TransitionRecord, int]] = {}
        self.servers: dict[str, ServerRecord] = {}
        self.assigner = ValidatedAssigner(epoch, self.config)
        self.sent: list[fx.SendOpen | fx.SendClose] = []
        self.writes: list[fx.WriteOffline | fx.DeleteTransition] = []
        self.notes: list[str] = []
        self.plans: list[fx.RequestPlan] = []
        #: uuids of servers that accept orders and never answer
        self.silent: set[str] = set()
        self.draining: list[str] = []
        #: uuid -> error of every open
        self.failing: dict[str, str] = {}
        self.fences: dict[str, FenceRecord] = {}
        self.bars: list[BarRecord] = []
        self.moves: dict[str, MoveBatch] = {}
        #: uuids of servers that close nothing and report it each time
        self.hanging: set[str] = set()
        #: key -> damage that its server has found in its rows
        self.damage: dict[str, str] = {}
        #: server that has each region open, for the rule of one owner
        self.open: dict[str, Incarnation] = {}
        #: key -> schema version of an open replica on its server
        self.follows: dict[str, int] = {}
        self.told: list[fx.SendAlter] = []
        #: uuids of servers that receive no schemas
        self.deaf: set[str] = set()
        self.replaces: list[fx.ReplaceRegion] = []
        #: outcome of the next replacements: carried out, rejected by the store, or still in flight
        self.replacing = "done"

    def put(self, *regions: RegionRecord) -> None:
        for one in regions:
            self.regions[one.region_id] = (one, 0)
            for location in one.replicas:
                if location.incarnation is not None:
                    self.open[f"{one.region_id}-{location.replica}"] = location.incarnation

    def put_transition(self, record: TransitionRecord, version: int = 3) -> None:
        self.unassigned[record.key] = (record, version)

    def start(self, *servers: ServerRecord, run: bool = True) -> None:
        """Load and begin; with `run`, continue until no work is left."""
        self.servers = {one.uuid: one for one in servers}
        self.assigner.load(
            self.tables.values(),
            self.regions.values(),
            servers,
            self.unassigned.values(),
            self.draining,
            self.now,
            fences=list(self.fences.values()),
            moves=list(self.moves.values()),
            bars=self.bars,
        )
        self.assigner.begin(self.now)
        if run:
            self.run()

    def successor(self) -> None:
        """Let a new master take over with only the store."""
        self.assigner = ValidatedAssigner(self.assigner.epoch + 1, self.config)
        self.start(*self.servers.values())

    def kill(self, uuid: str, run: bool = True) -> None:
        """End the server's session, with all its open regions."""
        dead = self.servers.pop(uuid)
        self.open = {key: owner for key, owner in self.open.items() if owner != dead.incarnation}
        self.assigner.handle(ev.ServerDown(uuid), self.now)
        if run:
            self.run()

    def join(self, record: ServerRecord) -> None:
        self.servers[record.uuid] = record
        self.assigner.handle(ev.ServerUp(record), self.now)
        self.run()

    def handle(self, event: ev.Event) -> None:
        self.assigner.handle(event, self.now)
        self.run()

    def pass_time(self, ms: int, step_ms: int = 500) -> None:
        for _ in range(0, ms, step_ms):
            self.now += step_ms
            self.assigner.tick(self.now)
            self.run()

    def run(self, rounds: int = 200) -> None:
        for _ in range(rounds):
            effects = caused(self.assigner.take(self.now))
            if not effects:
                return
            for effect in effects:
                self._carry_out(effect)
        raise AssertionError(f"does not settle: {effects[:3]}")

    def where(self, name: str = "r1") -> str | None:
        """Return the uuid of the live server that has replica 0 open and at rest."""
        replica = self.assigner.world.replicas[f"{name}-0"]
        if replica.transition is not None or replica.open_on is None:
            return None
        return replica.open_on.uuid

    def state(self, name: str = "r1") -> RegionState | None:
        found = self.unassigned.get(f"{name}-0")
        return None if found is None else found[0].state

    def problems(self, limit: int = 5) -> list[str]:
        """Return the problems that the master shows to operators."""
        assigner = self.assigner
        work = look(assigner.world.active.values(), assigner.unplaceable())
        return problems(assigner.world, work, assigner.unplaceable(), assigner.config, self.now, limit)

    def set_intent(self, intent: TableIntent) -> None:
        self.change_table(intent=intent)

    # --- effects --------------------------------------------------------------------------------------------------

    def _carry_out(self, effect: fx.Effect) -> None:
        match effect:
            case fx.WriteOffline() | fx.DeleteTransition():
                self.writes.append(effect)
                self.assigner.handle(self._write_answer(effect), self.now)
            case fx.SendOpen() | fx.SendClose():
                self.sent.append(effect)
                self._answer(effect)
            case fx.ReadTransition():
                self.see(effect.region_id)
            case fx.ReadRegion():
                self.assigner.handle(ev.RegionSeen(*self.regions[effect.region_id]), self.now)
            case fx.ReadTable():
                self.assigner.handle(ev.TableSeen(*self.tables[effect.table_id]), self.now)
            case fx.RequestPlan():
                self.plans.append(effect)
            case fx.Note():
                self.notes.append(effect.text)
            case fx.WriteFence():
                self._fence(effect)
            case fx.ForgetFence():
                del self.fences[effect.uuid]
            case fx.ForgetBar():
                self.bars.remove(effect.bar)
                self.assigner.handle(ev.BarsSeen(self.bars), self.now)
            case fx.FinishMoves():
                del self.moves[effect.move_id]
            case fx.SendAlter():
                self.told.append(effect)
                self._alter(effect)
            case fx.FinishAltering():
                self._finish_altering(effect)
            case fx.ReplaceRegion():
                self.replaces.append(effect)
                self._replace(effect)
            case fx.FinishTable():
                table = effect.record
                assert self.tables[table.table_id] == (table, effect.version)
                finished = msgspec.structs.replace(table, finished_ms=self.now)
                self.tables[table.table_id] = (finished, effect.version + 1)
                self.assigner.handle(ev.FinishAnswered(table.table_id, True), self.now)

    def _fence(self, effect: fx.WriteFence) -> None:
        """Fence a server by one multi that deletes the registration and writes the mark; the server continues for a
        while."""
        uuid = effect.server.uuid
        if self.servers.get(uuid) != effect.server:
            self.assigner.handle(ev.FenceFailed(uuid), self.now)
            return
        del self.servers[uuid]
        fence = FenceRecord(effect.server, effect.lease_ms, effect.reason, self.assigner.epoch, self.now, effect.origin)
        self.fences[uuid] = fence
        self.assigner.handle(ev.ServerFenced(fence), self.now)
        self.assigner.handle(ev.ServerDown(uuid), self.now)

    def _alter(self, effect: fx.SendAlter) -> None:
        uuid = effect.server.uuid
        if uuid in self.deaf or self.servers.get(uuid) != effect.server:
            self.assigner.handle(ev.AltersLost(effect.batch, "no answer"), self.now)
            return
        results = []
        for order in effect.orders:
            key = f"{order.region_id}-{order.replica}"
            version = -1
            if self.open.get(key) == effect.server.incarnation:
                version = self.follows[key] = max(self.follows.get(key, 0), order.schema_version)
            results.append(AlterResult(order.region_id, order.replica, version))
        self.assigner.handle(ev.AltersAnswered(effect.batch, results), self.now)

    def _finish_altering(self, effect: fx.FinishAltering) -> None:
        record, version = self.tables[effect.table_id]
        if record.state is TableState.ALTERING and record.schema_version == effect.schema_version:
            self.tables[effect.table_id] = (msgspec.structs.replace(record, state=TableState.RUNNING), version + 1)
            self.assigner.handle(ev.TableSeen(*self.tables[effect.table_id]), self.now)

    def alter(self) -> None:
        """Write a new schema version; the master receives the written record."""
        record, _ = self.tables["t1"]
        self.change_table(state=TableState.ALTERING, schema_version=record.schema_version + 1)

    def _replace(self, effect: fx.ReplaceRegion) -> None:
        """Replace a region by one write, all or nothing."""
        if self.replacing == "waiting":
            return
        former = effect.record
        region_id = former.region_id
        fits = self.replacing == "done" and self.regions[region_id] == (former, effect.version)
        for record, version in effect.transitions:
            found = self.unassigned.get(record.key)
            fits = fits and found is not None and found[1] == version and found[0].state is RegionState.OFFLINE
        if not fits:
            self.assigner.handle(ev.ReplaceFailed(region_id), self.now)
            return
        for record, _ in effect.transitions:
            del self.unassigned[record.key]
        self.regions[region_id] = (msgspec.structs.replace(former, state=TabletState.REPLACED), effect.version + 1)
        self.regions[effect.fresh.region_id] = (effect.fresh, 0)
        self.assigner.handle(ev.RegionReplaced(region_id, effect.fresh), self.now)

    def stop_serving(self, uuid: str) -> None:
        """Close all regions of a fenced server, which has noticed the fence or whose lease has ended."""
        self.open = {key: owner for key, owner in self.open.items() if owner.uuid != uuid}

    def accept(self, *moves: tuple[str, str, str], move_id: str = "m1") -> None:
        """Write a batch of (region, source, destination), and pass it to the assigner."""
        batch = MoveBatch(move_id, tuple(Move(f"{name}-0", at(source), to) for name, source, to in moves))
        self.moves[move_id] = batch
        self.handle(ev.MovesAccepted(batch))

    def change_table(self, **changes: object) -> None:
        record, version = self.tables["t1"]
        self.tables["t1"] = (msgspec.structs.replace(record, **changes), version + 1)
        self.handle(ev.TableSeen(*self.tables["t1"]))

    def set_unassigned(self, name: str, unassigned: bool) -> None:
        record, version = self.regions[name]
        self.regions[name] = (msgspec.structs.replace(record, unassigned=unassigned), version + 1)
        self.handle(ev.RegionSeen(*self.regions[name]))

    def see(self, name: str = "r1", replica: int = 0) -> None:
        record, version = self.unassigned.get(f"{name}-{replica}", (None, -1))
        self.assigner.handle(ev.TransitionRead(f"{name}-{replica}", record, version), self.now)

    def _write_answer(self, effect: fx.WriteOffline | fx.DeleteTransition) -> ev.WriteDone | ev.WriteFailed:
        """Write, unless the table's record differs from the one that the write names."""
        if effect.table_check is not None and self.tables[effect.table_check[0]][1] != effect.table_check[1]:
            return ev.WriteFailed(effect.key, effect.table_check[1])
        done = self._write(effect)
        return ev.WriteDone(effect.key, done) if done >= 0 else ev.WriteFailed(effect.key)

    def _write(self, effect: fx.WriteOffline | fx.DeleteTransition) -> int:
        after = effect.record.state if isinstance(effect, fx.WriteOffline) else None
        check(Actor.MASTER, effect.before, after, effect.cause, subject=effect.key)
        found = self.unassigned.get(effect.key)
        if (found[1] if found else -1) != effect.version:
            return -1
        if isinstance(effect, fx.WriteOffline):
            version = 0 if found is None else found[1] + 1
            self.unassigned[effect.key] = (effect.record, version)
            return version
        if effect.table_check is not None:
            assert self.tables[effect.table_check[0]][1] == effect.table_check[1]
        if effect.region is not None:
            assert self.regions[effect.region_id][1] == effect.region_version
            self.regions[effect.region_id] = (effect.region, effect.region_version + 1)
        del self.unassigned[effect.key]
        return 0

    def _answer(self, effect: fx.SendOpen | fx.SendClose) -> None:
        uuid = effect.server.uuid
        if uuid in self.silent or self.servers.get(uuid) != effect.server:
            return
        results = [self.obey(effect.server, order) for order in effect.orders]
        self.assigner.handle(ev.OrdersAnswered(effect.batch, results), self.now)
        for order in effect.orders:
            about = order.transition if isinstance(order, OpenOrder) else order
            self.see(about.region_id, about.replica)

    def obey(self, record: ServerRecord, order: OpenOrder | CloseOrder) -> OrderResult:
        if isinstance(order, CloseOrder):
            return self._close(record, order)
        return self._open(record, order)

    def step(self, actor: Actor, record: TransitionRecord, version: int, cause: Cause) -> int:
        """Do one compare-and-set of a server. Return -1 if it failed."""
        found = self.unassigned.get(record.key)
        check(actor, found[0].state if found else None, record.state, cause)
        if (found[1] if found else -1) != version:
            return -1
        self.unassigned[record.key] = (record, version + 1)
        return version + 1

    def _open(self, record: ServerRecord, order: OpenOrder) -> OrderResult:
        given = order.transition
        assert given.destination == record.incarnation
        if self.unassigned.get(given.key) != (given, order.version):
            return OrderResult(given.region_id, given.replica, OrderOutcome.REFUSED, error="the znode has moved on")
        opening = msgspec.structs.replace(given, state=RegionState.OPENING)
        version = self.step(Actor.SERVER, opening, order.version, Cause.OPEN_ORDER)
        if record.uuid in self.failing:
            return OrderResult(given.region_id, given.replica, OrderOutcome.FAILED, version, self.failing[record.uuid])
        assert given.key not in self.open, f"{given.key} would be open twice"
        opened = msgspec.structs.replace(opening, state=RegionState.OPENED)
        version = self.step(Actor.SERVER, opened, version, Cause.OPEN_DONE)
        self.open[given.key] = record.incarnation
        self.follows[given.key] = order.schema_version
        region_record, region_version = self.regions[given.region_id]
        assert region_version == order.region_version, "the master lost count of the region's version"
        location = ReplicaLocation(given.replica, record.uuid, record.start_code, self.now)
        self.regions[given.region_id] = (region_record.with_location(location), region_version + 1)
        return OrderResult(given.region_id, given.replica, OrderOutcome.DONE, version)

    def _close(self, record: ServerRecord, order: CloseOrder) -> OrderResult:
        key = f"{order.region_id}-{order.replica}"
        if self.open.get(key) != record.incarnation:
            return OrderResult(order.region_id, order.replica, OrderOutcome.REFUSED, error="not open here")
        closing = TransitionRecord(
            order.region_id,
            order.table_id,
            order.replica,
            RegionState.CLOSING,
            record.incarnation,
            order.destination,
            order.intent,
            self.assigner.epoch,
            damage=self.damage.get(key, ""),
            origin=order.origin,
        )
        found = self.unassigned.get(key)
        version = found[1] if found else self.step(Actor.SERVER, closing, -1, Cause.CLOSE_ORDER)
        if record.uuid in self.hanging:
            return OrderResult(order.region_id, order.replica, OrderOutcome.FAILED, version, "the disk hangs")
        closed = msgspec.structs.replace(closing, state=RegionState.CLOSED)
        version = self.step(Actor.SERVER, closed, version, Cause.CLOSE_DONE)
        del self.open[key]
        return OrderResult(order.region_id, order.replica, OrderOutcome.DONE, version)


__all__ = ["Intent", "ModelCluster", "at", "region", "server", "transition"]
