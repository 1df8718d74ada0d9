"""A master's metrics for Prometheus, read from the service at each scrape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from coord.metrics.definitions import ALL_TURNS, RPC_REQUESTS, Definition, MetricKind, add_process, of_turns
from coord.metrics.spans import SpansByName
from coord.metrics.turns import TurnTimes
from master.active import ActiveMaster
from master.assignment.transition_times import TransitionTimes
from master.heartbeats import HeartbeatReceiver
from master.standby.auditor import Auditor
from regions.diagnose.tablets import TabletWatch
from regions.messages import MasterStatus, TabletHealth
from regions.records.model import RegionState


class StatusSource(Protocol):
    """The API object that returns a master's status."""

    def status(self) -> MasterStatus: ...


class MetricsSource(Protocol):
    """The attributes of the service that the metrics read."""

    active_master: ActiveMaster | None
    auditor: Auditor | None
    heartbeats: HeartbeatReceiver
    alarms_before: int
    tenures: int
    phase_times: SpansByName
    transition_times: TransitionTimes
    rpc_times: SpansByName
    now_ms: Callable[[], int]

    @property
    def api(self) -> StatusSource: ...

    @property
    def grants_problem(self) -> str: ...

    @property
    def turns(self) -> TurnTimes | None: ...


class StatusFigure(NamedTuple):
    """A gauge of a master's status, and the function that reads it."""

    definition: Definition
    read: Callable[[MasterStatus], float]


class ActiveFigure(NamedTuple):
    """A figure that only the active master has, and the function that reads it."""

    definition: Definition
    read: Callable[[ActiveMaster], float]


class HeartbeatFigure(NamedTuple):
    """A figure of the heartbeats that reach this master, and the function that reads it."""

    definition: Definition
    read: Callable[[HeartbeatReceiver], float]


def _gauge(name: str, text: str, *labels: str) -> Definition:
    return Definition(f"master_{name}", MetricKind.GAUGE, text, labels)


def _counter(name: str, text: str) -> Definition:
    return Definition(f"master_{name}", MetricKind.COUNTER, text)


def _history(name: str, text: str) -> Definition:
    return Definition(f"history_{name}", MetricKind.GAUGE, text)


STATUS: Final = (
    StatusFigure(_gauge("active", "1 while this master is the active one."), lambda s: float(s.role == "active")),
    StatusFigure(_gauge("epoch", "Fencing epoch of this active master, 0 on a standby."), lambda s: s.epoch),
    StatusFigure(_gauge("masters", "Live masters, as this master knows them."), lambda s: s.masters),
    StatusFigure(_gauge("servers", "Live region servers, on the active master."), lambda s: s.servers),
    StatusFigure(_gauge("tables", "Tables, on the active master."), lambda s: s.tables),
    StatusFigure(_gauge("replicas", "Region replicas, on the active master."), lambda s: s.replicas),
    StatusFigure(_gauge("replicas_open", "Replicas at rest on a live server."), lambda s: s.open),
    StatusFigure(_gauge("replicas_in_transition", "Replicas with a transition znode."), lambda s: s.rit),
    StatusFigure(_gauge("replicas_parked", "Replicas that failed to open too often."), lambda s: s.parked),
    StatusFigure(
        _gauge("replicas_unavailable", "Replicas of shared regions that should be open and are not, parked ones too."),
        lambda s: 0 if s.unserved is None else s.unserved.count,
    ),
    StatusFigure(_gauge("problems", "Problems that need an operator, at most 20."), lambda s: len(s.problems)),
    StatusFigure(_gauge("uptime_seconds", "Time since the start of this process."), lambda s: s.uptime_ms / 1000),
)
HEARTBEATS: Final = (
    HeartbeatFigure(
        _gauge("servers_heard", "Servers with recent heartbeats."), lambda h: len(h.roster) - h.silent_count()
    ),
    HeartbeatFigure(_gauge("servers_silent", "Servers whose heartbeats have stopped."), lambda h: h.silent_count()),
    HeartbeatFigure(_counter("heartbeats", "Heartbeats accepted."), lambda h: h.roster.beats),
    HeartbeatFigure(
        _counter("heartbeats_stale", "Heartbeats ignored because of an old sequence number."), lambda h: h.roster.stale
    ),
    HeartbeatFigure(
        _counter("heartbeats_crowded", "Servers dropped or not taken into a full roster of heartbeats."),
        lambda h: h.roster.crowded,
    ),
    HeartbeatFigure(
        _counter(
            "heartbeats_refused", "Heartbeats rejected: of another cluster, for another master, or by another identity."
        ),
        lambda h: h.refused,
    ),
)
_SINCE: Final = " since this master became active."
ACTIVE: Final = (
    ActiveFigure(
        _gauge("orphans", "Replicas that servers serve and no table has."), lambda a: len(a.reports.orphans)
    ),
    ActiveFigure(_counter("reports", f"Heartbeats with a report{_SINCE}"), lambda a: a.reports.count),
    ActiveFigure(_counter("reports_full", f"Full reports{_SINCE}"), lambda a: a.reports.full_count),
    ActiveFigure(_counter("reported_replicas", f"Replicas reported{_SINCE}"), lambda a: a.reports.replica_count),
    ActiveFigure(
        _counter("reviews", f"Misplaced replicas that servers were ordered to check{_SINCE}"),
        lambda a: a.misplaced.reviews,
    ),
    ActiveFigure(_counter("multis", f"Multis of transitions sent{_SINCE}"), lambda a: a.multis),
    ActiveFigure(
        _counter("multis_refused", f"Multis of transitions refused after a lost race{_SINCE}"),
        lambda a: a.multis_refused,
    ),
    ActiveFigure(_counter("reads", f"Batched reads of transitions{_SINCE}"), lambda a: a.reads),
    ActiveFigure(_history("steps", "Steps in the history."), lambda a: a.history_writer.steps),
    ActiveFigure(_history("bytes", "Bytes of the history in the store."), lambda a: a.history_writer.size),
    ActiveFigure(_history("segments", "Znodes of the history."), lambda a: a.history_writer.segments),
)  # fmt: skip
GRANTS_DAMAGED: Final = _gauge("grants_damaged", "1 while the grants in the store cannot be read.")
TENURES: Final = _counter("tenures", "Times that this process has become the active master.")
PHASES: Final = _gauge("phase_seconds", "Last duration of each phase of an activation.", "phase")
PHASE_TIMES: Final = Definition(
    "master_activation_phase_seconds",
    MetricKind.HISTOGRAM,
    "Durations of the phases of startups and failovers, since this process started.",
    ("phase",),
)
STATE_TIMES: Final = Definition(
    "master_transition_state_seconds", MetricKind.HISTOGRAM, "Time of transitions in each state.", ("state",)
)
CAUSE_TIMES: Final = Definition(
    "master_transition_seconds",
    MetricKind.HISTOGRAM,
    "Time of whole transitions, by the cause of their first step.",
    ("cause",),
)
BY_STATE: Final = _gauge("transitions", "Transitions of shared regions, by state.", "state")
OLDEST: Final = _gauge(
    "oldest_transition_seconds",
    "Age of the oldest transition of a shared region that is not parked, since its first step; 0 without one.",
)
ALARMS: Final = Definition("audit_alarms", MetricKind.COUNTER, "Alarms raised by this master's auditor.")
STEPS: Final = Definition(
    "audit_steps", MetricKind.COUNTER, "Steps of transitions that the auditor checked in this session."
)
TABLETS: Final = _gauge("tablets", "Tablets by health.", "health")
TABLETS_LED: Final = _gauge("tablets_led", "Tablets whose leader reports to this master.")
TABLET_ORPHANS: Final = _gauge("tablet_orphans", "Replicas of tablets that the store does not know.")
DEFINITIONS: Final = (
    *(one.definition for one in (*STATUS, *HEARTBEATS, *ACTIVE)),
    *(GRANTS_DAMAGED, TENURES, PHASES, PHASE_TIMES, STATE_TIMES, CAUSE_TIMES, BY_STATE, OLDEST, ALARMS, STEPS),
    *(TABLETS, TABLETS_LED, TABLET_ORPHANS, RPC_REQUESTS, *ALL_TURNS),
)


class MasterMetrics(Collector):
    """Collector that registers itself and the metrics of the process, and does nothing between scrapes."""

    def __init__(self, master: MetricsSource, registry: CollectorRegistry) -> None:
        self._master = master
        registry.register(self)
        add_process(registry, "master")

    def describe(self) -> list[Metric]:
        """Return nothing: the service may still be starting when the collector is registered."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        master = self._master
        status = master.api.status()
        for figure in STATUS:
            yield figure.definition.family(figure.read(status))
        for beats in HEARTBEATS:
            yield beats.definition.family(beats.read(master.heartbeats))
        yield GRANTS_DAMAGED.family(int(bool(master.grants_problem)))
        yield TENURES.family(master.tenures)
        yield PHASES.labeled({(phase.name,): phase.seconds for phase in status.phases})
        yield PHASE_TIMES.histogram_by_name(master.phase_times.by_name)
        yield STATE_TIMES.histogram_by_name(master.transition_times.states.by_name)
        yield CAUSE_TIMES.histogram_by_name(master.transition_times.causes.by_name)
        yield RPC_REQUESTS.histogram_by_name(master.rpc_times.by_name)
        if master.turns is not None:
            yield from of_turns(master.turns)
        auditor = master.auditor
        yield ALARMS.family(master.alarms_before + (0 if auditor is None else auditor.alarms))
        yield STEPS.family(0 if auditor is None else auditor.audit.steps)
        active_master = master.active_master
        if active_master is not None:
            yield from of_tablets(active_master.keeper.watch)
            for held in ACTIVE:
                yield held.definition.family(held.read(active_master))
            yield from self._of_transitions(active_master)

    def _of_transitions(self, active_master: ActiveMaster) -> Iterator[Metric]:
        """Yield the transitions by state, and the age of the oldest."""
        states: Counter[RegionState] = Counter()
        oldest_ms = now_ms = self._master.now_ms()
        for replica in active_master.world.rit():
            transition = replica.transition
            if transition is None:
                continue
            states[transition.state] += 1
            if not transition.parked:
                since_ms = self._master.transition_times.since_ms(replica.key)
                oldest_ms = min(oldest_ms, transition.since_ms if since_ms is None else since_ms)
        yield BY_STATE.labeled({(state.value,): states[state] for state in RegionState})
        yield OLDEST.family((now_ms - oldest_ms) / 1000)


def of_tablets(watch: TabletWatch) -> Iterator[Metric]:
    """Yield the numbers of tablets by health, and of those with a leader."""
    yield TABLETS.labeled({(health.value,): watch.counts[health] for health in TabletHealth})
    yield TABLETS_LED.family(watch.leaders.total())
    yield TABLET_ORPHANS.family(len(watch.keeper.orphans))
