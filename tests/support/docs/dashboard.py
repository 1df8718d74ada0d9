"""The dashboard for Grafana, monitoring/dashboard.json, from one table of panels."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

#: Width of the grid, width and height of one panel.
_GRID, _WIDTH, _HEIGHT = 24, 8, 7
_RATE: Final = "$__rate_interval"
_SOURCE: Final = {"type": "prometheus", "uid": "${source}"}


class Panel(NamedTuple):
    """A panel: queries with their legends, and the unit in Grafana's words."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]


def _quantiles(metric: str, by: str = "") -> tuple[tuple[str, str], ...]:
    """Return the median and the 99th percentile of a histogram, over all daemons or by a label."""
    grouped = f"{by}, le" if by else "le"
    rate = f"sum by ({grouped}) (rate({metric}_bucket[{_RATE}]))"
    legend = f"{{{{{by}}}}} " if by else ""
    return tuple((f"histogram_quantile({share}, {rate})", f"{legend}p{share * 100:g}") for share in (0.5, 0.99))


_ACTIVE: Final = "and on (instance) regionkeeper_master_active == 1"

#: Heading -> panels.
ROWS: Final[dict[str, tuple[Panel, ...]]] = {
    "Cluster": (
        Panel("Daemons up", "short", (("count by (job) (up == 1)", "{{job}}"),)),
        Panel(
            "Regions",
            "short",
            (
                (f"sum(regionkeeper_master_replicas {_ACTIVE})", "replicas"),
                (f"sum(regionkeeper_master_replicas_open {_ACTIVE})", "open"),
                (f"sum(regionkeeper_master_replicas_in_transition {_ACTIVE})", "in transition"),
                (f"sum(regionkeeper_master_replicas_unavailable {_ACTIVE})", "unavailable"),
                (f"sum(regionkeeper_master_replicas_parked {_ACTIVE})", "parked"),
            ),
        ),
        Panel("Tablets by health", "short", (("sum by (health) (regionkeeper_master_tablets)", "{{health}}"),)),
        Panel("Alarms of the auditor", "short", (("sum(increase(regionkeeper_audit_alarms_total[1h]))", "an hour"),)),
        Panel("Versions", "short", (("count by (daemon, version, form) (regionkeeper_build_info)",
                                     "{{daemon}} {{version}} {{form}}"),)),
        Panel("Problems for an operator", "short", ((f"sum(regionkeeper_master_problems {_ACTIVE})", "problems"),)),
    ),
    "Masters": (
        Panel("Active master", "short", (("regionkeeper_master_active", "{{instance}}"),
                                         ("max(regionkeeper_master_epoch)", "epoch"))),
        Panel("Servers", "short", ((f"max(regionkeeper_master_servers_heard {_ACTIVE})", "heard"),
                                   (f"max(regionkeeper_master_servers_silent {_ACTIVE})", "silent"))),
        Panel("Transitions by state", "short", (("sum by (state) (regionkeeper_master_transitions)", "{{state}}"),)),
        Panel("Oldest transition", "s", (("max(regionkeeper_master_oldest_transition_seconds)", "age"),)),
        Panel("Time of transitions by cause", "s", _quantiles("regionkeeper_master_transition_seconds", "cause")),
        Panel("Time in each state", "s", _quantiles("regionkeeper_master_transition_state_seconds", "state")),
        Panel("Phases of the last activation", "s", (("regionkeeper_master_phase_seconds", "{{instance}} {{phase}}"),)),
        Panel("Phases of activations, mean", "s", (
            ("sum by (phase) (regionkeeper_master_activation_phase_seconds_sum)"
             " / sum by (phase) (regionkeeper_master_activation_phase_seconds_count)", "{{phase}}"),)),
        Panel("Heartbeats", "reqps", ((f"sum by (instance) (rate(regionkeeper_master_heartbeats_total[{_RATE}]))",
                                       "{{instance}}"),)),
    ),
    "Store": (
        Panel("Leader", "short", (("regionkeeper_store_leader", "{{instance}}"),)),
        Panel("Requests", "reqps", ((f"sum by (instance) (rate(regionkeeper_store_requests_total[{_RATE}]))",
                                     "{{instance}}"),)),
        Panel("Time of a sync of the log", "s", _quantiles("regionkeeper_store_log_sync_seconds", "instance")),
        Panel("Time of a request through the log", "s", _quantiles("regionkeeper_store_request_seconds", "kind")),
        Panel("Entries that nodes are behind", "short", (("regionkeeper_store_follower_behind_entries",
                                                          "node {{node}}"),)),
        Panel("Sessions and connections", "short", (("max(regionkeeper_store_sessions)", "sessions"),
                                                    ("regionkeeper_store_connections", "{{instance}}"))),
        Panel("Znodes", "short", (("max(regionkeeper_store_znodes)", "znodes"),)),
        Panel("Bytes in znodes", "bytes", (("max(regionkeeper_store_data_bytes)", "data"),)),
        Panel("Elections won", "short", (("sum(increase(regionkeeper_store_elections_won_total[1h]))", "in an hour"),)),
    ),
    "Region servers": (
        Panel("Serving", "short", (("regionkeeper_server_serving", "{{instance}}"),)),
        Panel("Lease left", "s", (("regionkeeper_server_lease_left_seconds", "{{instance}}"),)),
        Panel("Tablets led", "short", (("regionkeeper_server_tablet_leaders", "{{instance}}"),)),
        Panel("Requests for tablets", "reqps", (
            (f"sum by (kind) (rate(regionkeeper_server_tablet_requests_total[{_RATE}]))", "{{kind}}"),)),
        Panel("Time of durable commits of shared regions", "s", _quantiles("regionkeeper_kv_commit_seconds")),
        Panel("Time to open a region", "s", _quantiles("regionkeeper_server_open_seconds")),
    ),
    "Processes": (
        Panel("Time of RPC by kind, p99", "s", _quantiles("regionkeeper_rpc_request_seconds", "kind")[1:]),
        Panel("Turns of the main loop", "s", _quantiles("regionkeeper_reactor_turn_seconds", "job")),
        Panel("Memory", "bytes", (('process_resident_memory_bytes{job=~"regionkeeper-.*"}', "{{job}} {{instance}}"),)),
        Panel("Processor time", "percentunit", (
            (f'rate(process_cpu_seconds_total{{job=~"regionkeeper-.*"}}[{_RATE}])', "{{job}} {{instance}}"),)),
        Panel("Open files", "short", (('process_open_fds{job=~"regionkeeper-.*"}', "{{job}} {{instance}}"),)),
    ),
}  # fmt: skip


def panels() -> Iterator[Panel]:
    """Yield every panel."""
    for row in ROWS.values():
        yield from row


def dashboard() -> str:
    """Return monitoring/dashboard.json."""
    made: list[dict[str, Any]] = []
    top = 0
    for title, row in ROWS.items():
        place = {"x": 0, "y": top, "w": _GRID, "h": 1}
        made.append({"id": len(made) + 1, "type": "row", "title": title, "gridPos": place, "collapsed": False})
        top += 1
        for number, panel in enumerate(row):
            column, line = number % (_GRID // _WIDTH), number // (_GRID // _WIDTH)
            place = {"x": column * _WIDTH, "y": top + line * _HEIGHT, "w": _WIDTH, "h": _HEIGHT}
            made.append({"id": len(made) + 1, "gridPos": place, **_panel(panel)})
        top += -(-len(row) // (_GRID // _WIDTH)) * _HEIGHT
    source = {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    whole = {
        "title": "RegionKeeper",
        "uid": "regionkeeper",
        "description": "Generated by `make docs` from tests/support/docs/dashboard.py; do not edit.",
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "tags": ["regionkeeper"],
        "templating": {"list": [source]},
        "panels": made,
    }
    return json.dumps(whole, indent=1) + "\n"


def _panel(panel: Panel) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + number), "datasource": _SOURCE, "expr": expression, "legendFormat": legend}
        for number, (expression, legend) in enumerate(panel.queries)
    ]
    defaults = {"unit": panel.unit, "min": 0, "custom": {"fillOpacity": 10, "showPoints": "never"}}
    options = {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}}
    return {
        "type": "timeseries",
        "title": panel.title,
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
        "targets": targets,
    }
