"""A master's metrics for Prometheus, read from the service at each scrape."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from master.active import ActiveMaster
from master.heartbeats import HeartbeatReceiver
from master.standby.auditor import Auditor
from regions.diagnose.tablets import TabletWatch
from regions.messages import MasterStatus, TabletHealth


class StatusSource(Protocol):
    """The API object that returns a master's status."""

    def status(self) -> MasterStatus: ...


class MetricsSource(Protocol):
    """The attributes of the service that the metrics read."""

    active_master: ActiveMaster | None
    auditor: Auditor | None
    heartbeats: HeartbeatReceiver
    alarms_before: int

    @property
    def api(self) -> StatusSource: ...


class MasterMetrics(Collector):
    """Collector that registers itself and does nothing between scrapes."""

    def __init__(self, master: MetricsSource, registry: CollectorRegistry) -> None:
        self._master = master
        registry.register(self)

    def describe(self) -> list[Metric]:
        """Return nothing: the service may still be starting when the collector is registered."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        status = self._master.api.status()
        gauges = {
            "active": (1.0 if status.role == "active" else 0.0, "1 while this master is the active one"),
            "epoch": (status.epoch, "fencing epoch of this active master, 0 on a standby"),
            "servers": (status.servers, "live region servers"),
            "tables": (status.tables, "tables"),
            "replicas": (status.replicas, "region replicas"),
            "replicas_open": (status.open, "replicas at rest on a live server"),
            "replicas_in_transition": (status.rit, "replicas with a transition znode"),
            "replicas_parked": (status.parked, "replicas that failed to open too often"),
        }
        for name, (value, text) in gauges.items():
            yield GaugeMetricFamily(f"regionkeeper_master_{name}", text, value=value)
        phases = GaugeMetricFamily("regionkeeper_master_phase_seconds", "last duration of each phase", labels=["phase"])
        for phase in status.phases:
            phases.add_metric([phase.name], phase.seconds)
        yield phases
        yield from self._of_heartbeats()
        auditor = self._master.auditor
        yield CounterMetricFamily(
            "regionkeeper_audit_alarms",
            "alarms raised by this master's auditor",
            value=self._master.alarms_before + (0 if auditor is None else auditor.alarms),
        )
        yield CounterMetricFamily(
            "regionkeeper_audit_steps",
            "steps of transitions that the auditor checked in this session",
            value=0 if auditor is None else auditor.audit.steps,
        )
        active_master = self._master.active_master
        if active_master is not None:
            yield from of_tablets(active_master.keeper.watch)
            for name, held, text in (
                ("steps", active_master.history_writer.steps, "steps in the history"),
                ("bytes", active_master.history_writer.size, "bytes of the history in the store"),
                ("segments", active_master.history_writer.segments, "znodes of the history"),
            ):
                yield GaugeMetricFamily(f"regionkeeper_history_{name}", text, value=held)
            for name, counted, text in (
                ("multis", active_master.multis, "multis of transitions sent since this master became active"),
                ("multis_refused", active_master.multis_refused, "multis of transitions refused after a lost race"),
                ("reads", active_master.reads, "batched reads of transitions since this master became active"),
            ):
                yield CounterMetricFamily(f"regionkeeper_master_{name}", text, value=counted)

    def _of_heartbeats(self) -> Iterator[Metric]:
        """Yield the metrics of heartbeats, and on the active master those of reports."""
        receiver = self._master.heartbeats
        active_master = self._master.active_master
        gauges = [
            ("servers_heard", len(receiver.roster) - receiver.silent_count(), "servers with recent heartbeats"),
            ("servers_silent", receiver.silent_count(), "servers whose heartbeats have stopped"),
        ]
        counters = [
            ("heartbeats", receiver.roster.beats, "heartbeats accepted"),
            ("heartbeats_stale", receiver.roster.stale, "heartbeats ignored because of an old sequence number"),
            ("heartbeats_refused", receiver.refused, "heartbeats rejected: of another cluster, or for another master"),
        ]
        if active_master is not None:
            reports = active_master.reports
            gauges.append(("orphans", len(reports.orphans), "replicas that servers serve and no table has"))
            counters += [
                ("reports", reports.count, "heartbeats with a report since this master became active"),
                ("reports_full", reports.full_count, "full reports since this master became active"),
                ("reported_replicas", reports.replica_count, "replicas reported since this master became active"),
                (
                    "reviews",
                    active_master.misplaced.reviews,
                    "misplaced replicas that servers were ordered to check since this master became active",
                ),
            ]
        for name, value, text in gauges:
            yield GaugeMetricFamily(f"regionkeeper_master_{name}", text, value=value)
        for name, value, text in counters:
            yield CounterMetricFamily(f"regionkeeper_master_{name}", text, value=value)


def of_tablets(watch: TabletWatch) -> Iterator[Metric]:
    """Yield the numbers of tablets by health, and of those with a leader."""
    tablets = GaugeMetricFamily("regionkeeper_master_tablets", "tablets by health", labels=["health"])
    for health in TabletHealth:
        tablets.add_metric([health.value], watch.counts[health])
    yield tablets
    leaders = watch.leaders.total()
    yield GaugeMetricFamily(
        "regionkeeper_master_tablets_led", "tablets whose leader reports to this master", value=leaders
    )
    text = "replicas of tablets that the store does not know"
    yield GaugeMetricFamily("regionkeeper_master_tablet_orphans", text, value=len(watch.keeper.orphans))
