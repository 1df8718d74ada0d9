"""A small cluster in words, for transcripts of splits and merges.

    regions r1:m@a r2:@b           two regions, up to "m" and from there on, open on the servers a and b
    servers a b c                  register servers, and let a master begin
    split r1 k | merge r1 r2       what an operator wants, if nothing is in the way
    hold WriteResharding           carry out no effect of this kind; `release` forgets them: the replies were lost
    master                         another master takes over, with only the store
    kill a | back a                a server's registration
    silent a | hang a | talks a    a server accepts orders and never answers; closes nothing; does both again
    refuse why                     servers refuse to prepare daughters
    disable | enable | unassign r1
    pass 1000                      time

Each command prints the regions with their servers, the transitions, and the work under way. After every write of the
store the key ranges of the table must be whole.
"""

from __future__ import annotations

import msgspec

from regions.assign.resharding import objections
from regions.assign.resharding.daughters import merged, split_at
from regions.cluster import effects as fx
from regions.cluster import events as ev
from regions.cluster.limits import AssignerConfig
from regions.records.acts.resharding import ReshardingRecord, ReshardingState
from regions.records.formats import RESHARDING
from regions.records.model import RegionRecord, ReplicaLocation, TableIntent, TabletState, WorkOrigin
from regions.records.partitioning import RegionSpec, check_ranges
from regions.transitions.resharding import RESHARDING_STEPS
from tests.unit.regions.model_cluster import ModelCluster, server

_LEGAL = {(one.before, one.after) for one in RESHARDING_STEPS}


class ReshardingCluster(ModelCluster):
    """A model cluster that knows splits and merges."""

    def __init__(self) -> None:
        super().__init__(AssignerConfig(bulk_min=1000, resharding_timeout_ms=60_000))
        self.works: dict[str, tuple[ReshardingRecord, int]] = {}
        self.held: set[str] = set()
        self.refusal = ""
        self.removed: list[str] = []

    def start(self, *servers, run: bool = True) -> None:  # type: ignore[no-untyped-def]
        """Load and begin, with the work that is in the store."""
        for record, version in self.works.values():
            self.assigner.reshardings.load(record, version, self.now)
        super().start(*servers, run=run)

    def put_work(self, record: ReshardingRecord | None, region_id: str) -> None:
        """Write a step of the work, which must be legal."""
        before, version = self.works.pop(region_id, (None, -1))
        step = (None if before is None else before.state, None if record is None else record.state)
        assert step in _LEGAL, step
        if record is not None:
            self.works[region_id] = (record, version + 1)

    def check_keys(self) -> None:
        """Check that each key is in exactly one region."""
        there = [one for one, _ in self.regions.values() if not one.is_replaced]
        there.sort(key=lambda one: one.start_key)
        check_ranges([RegionSpec(one.start_key, one.end_key) for one in there])
        table = self.tables["t1"][0]
        assert table.regions == len(there), f"the table counts {table.regions} of {len(there)} regions"

    def _carry_out(self, effect: fx.Effect) -> None:
        if type(effect).__name__ in self.held:
            return
        match effect:
            case fx.PrepareDaughters():
                self._prepare(effect)
            case fx.WriteResharding():
                self._step(effect, effect.record)
            case fx.EndResharding():
                self._step(effect, None)
            case fx.ReplaceParents():
                self._replace_parents(effect)
            case fx.RemoveParents():
                self.removed += effect.record.parents
                self.assigner.handle(ev.ParentsRemoved(effect.record.region_id), self.now)
            case _:
                super()._carry_out(effect)

    def _prepare(self, effect: fx.PrepareDaughters) -> None:
        lost = effect.server.uuid in self.silent or self.servers.get(effect.server.uuid) != effect.server
        error = "no answer" if lost else self.refusal
        region_id = effect.record.region_id
        event = ev.DaughtersPrepared(region_id, effect.server.incarnation, error, is_final=not lost)
        self.assigner.handle(event, self.now)

    def _step(self, effect: fx.WriteResharding | fx.EndResharding, record: ReshardingRecord | None) -> None:
        region_id = effect.record.region_id
        if self.works.get(region_id, (None, -2))[1] != effect.version:
            self._read(effect.record)
            return
        self.put_work(record, region_id)
        if record is None:
            self.assigner.handle(ev.ReshardingEnded(region_id), self.now)
        else:
            self.assigner.handle(ev.ReshardingSeen(*self.works[region_id]), self.now)

    def _replace_parents(self, effect: fx.ReplaceParents) -> None:
        record = effect.record
        fits = self.tables["t1"][1] == effect.table_version and self.works[record.region_id][1] == effect.version
        fits &= all(self.regions[one.region_id] == (one, version) for one, version in effect.parents)
        fits &= all(self.unassigned.get(one.key) == (one, version) for one, version in effect.transitions)
        if not fits:
            self._read(record)
            return
        for parent, version in effect.parents:
            assert f"{parent.region_id}-0" not in self.open, f"{parent.region_id} is open"
            self.regions[parent.region_id] = (msgspec.structs.replace(parent, state=TabletState.REPLACED), version + 1)
        for transition, _ in effect.transitions:
            del self.unassigned[transition.key]
        for daughter in record.daughters:
            self.regions[daughter.region_id] = (daughter, 0)
        self.tables["t1"] = (effect.table, effect.table_version + 1)
        self.put_work(record, record.region_id)
        self.check_keys()
        event = ev.ParentsReplaced(record, effect.version + 1, effect.table, effect.table_version + 1)
        if "reply" not in self.held:
            self.assigner.handle(event, self.now)

    def _read(self, record: ReshardingRecord) -> None:
        """Hand the present records over, as the master does after a refused write."""
        self.assigner.handle(ev.TableSeen(*self.tables["t1"]), self.now)
        for region_id in record.parents:
            self.see(region_id)
        for region_id in (*record.parents, *(one.region_id for one in record.daughters)):
            if region_id in self.regions:
                self.assigner.handle(ev.RegionSeen(*self.regions[region_id]), self.now)
        work = self.works.get(record.region_id)
        event = ev.ReshardingEnded(record.region_id) if work is None else ev.ReshardingSeen(*work)
        self.assigner.handle(event, self.now)


class ReshardingBench:
    """See the module docstring."""

    def __init__(self) -> None:
        self.cluster = ReshardingCluster()

    def run(self, command: str) -> list[str]:
        """Carry out a command. Return its output."""
        name, *words = command.split()
        said = getattr(self, f"_{name}")(*words)
        self.cluster.check_keys()
        return ([said] if said else []) + self._shown()

    def _shown(self) -> list[str]:
        cluster = self.cluster
        lines = []
        for record, _ in sorted(cluster.regions.values(), key=lambda one: (one[0].start_key, one[0].region_id)):
            if record.is_replaced:
                continue
            moving = cluster.unassigned.get(f"{record.region_id}-0")
            owner = cluster.open.get(f"{record.region_id}-0")
            state = f"open on {owner.uuid}" if owner else "closed"
            parked = f", {moving[0].state.value}" if moving else ""
            lines.append(f"{record.region_id} [{record.start_key}..{record.end_key}) {state}{parked}")
        lines += [f"{work.words}: {work.state.value}" for work, _ in cluster.works.values()]
        if cluster.removed:
            lines.append(f"files removed: {' '.join(cluster.removed)}")
            cluster.removed = []
        lines += [note for note in cluster.notes if "canceled" in note]
        cluster.notes.clear()
        return lines

    def _regions(self, *words: str) -> None:
        start = ""
        for word in words:
            name, _, rest = word.partition(":")
            end, _, owner = rest.partition("@")
            location = ReplicaLocation(0, owner, 1, 1, token=7)
            self.cluster.put(RegionRecord("t1", name, start, end, replicas=(location,)))
            start = end
        table, version = self.cluster.tables["t1"]
        self.cluster.tables["t1"] = (msgspec.structs.replace(table, regions=len(words)), version)

    def _servers(self, *names: str) -> None:
        self.cluster.start(*(server(name) for name in names))

    def _split(self, name: str, key: str) -> str:
        region = self.cluster.assigner.world.regions[name]
        why = objections.objection_to_table(region.table, RESHARDING) or objections.objection_to_region(region)
        why = why or objections.objection_now(region) or objections.objection_to_key(region, key)
        return why or self._accept((name,), split_at(region.record, key))

    def _merge(self, left: str, right: str) -> str:
        regions = [self.cluster.assigner.world.regions[one] for one in (left, right)]
        found = [objections.objection_to_region(one) or objections.objection_now(one) for one in regions]
        why = found[0] or found[1] or objections.objection_to_pair(*regions)
        return why or self._accept((left, right), (merged(regions[0].record, regions[1].record),))

    def _accept(self, parents: tuple[str, ...], daughters: tuple[RegionRecord, ...]) -> str:
        record = ReshardingRecord(
            "t1", parents, daughters, ReshardingState.PREPARING, origin=WorkOrigin("e1-1", "request: t")
        )
        self.cluster.put_work(record, record.region_id)
        self.cluster.handle(ev.ReshardingSeen(*self.cluster.works[record.region_id]))
        return ""

    def _hold(self, kind: str) -> None:
        self.cluster.held.add(kind)

    def _release(self) -> None:
        self.cluster.held.clear()

    def _master(self) -> None:
        self.cluster.held.clear()
        self.cluster.successor()

    def _kill(self, name: str) -> None:
        self.cluster.kill(name)

    def _back(self, name: str) -> None:
        self.cluster.join(server(name, 2))

    def _silent(self, name: str) -> None:
        self.cluster.silent.add(name)

    def _hang(self, name: str) -> None:
        self.cluster.hanging.add(name)

    def _talks(self, name: str) -> None:
        self.cluster.silent.discard(name)
        self.cluster.hanging.discard(name)
        self.cluster.pass_time(31_000)

    def _refuse(self, *why: str) -> None:
        self.cluster.refusal = " ".join(why)

    def _disable(self) -> None:
        self.cluster.set_intent(TableIntent.DISABLED)

    def _enable(self) -> None:
        self.cluster.set_intent(TableIntent.ENABLED)

    def _unassign(self, name: str) -> None:
        self.cluster.set_unassigned(name, True)

    def _pass(self, ms: str) -> None:
        self.cluster.pass_time(int(ms))
