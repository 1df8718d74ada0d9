"""Alert rules and dashboard name metrics that exist; every rule has an advice and a test."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from coord.metrics.definitions import MetricKind
from tests.support.docs.dashboard import panels
from tests.support.docs.metrics import by_daemon
from tests.support.sources import ROOT

MONITORING = ROOT / "monitoring"
#: Metrics of Prometheus, and of every process by its client library.
_OTHERS = re.compile(r"up|process_\w+|python_info|ALERTS")


def series() -> set[str]:
    """Return the names of all series of our daemons."""
    found = set()
    for definitions in by_daemon().values():
        for one in definitions:
            endings = ("_bucket", "_sum", "_count") if one.kind is MetricKind.HISTOGRAM else ("",)
            found.update(one.full_name + ending for ending in endings)
    return found


def rules() -> list[dict[str, Any]]:
    """Return the alert rules."""
    groups: list[dict[str, Any]] = yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def unknown(expression: str) -> set[str]:
    """Return the names of metrics in a query that no daemon has."""
    return set(re.findall(r"regionkeeper_\w+", expression)) - series()


def test_rules_read_metrics_that_exist() -> None:
    assert {rule["alert"]: missing for rule in rules() if (missing := unknown(rule["expr"]))} == {}


def test_panels_read_metrics_that_exist() -> None:
    queries = [query for panel in panels() for query, _ in panel.queries]
    assert {query: missing for query in queries if (missing := unknown(query))} == {}
    for query in queries:
        assert "regionkeeper_" in query or _OTHERS.search(query), query


def test_every_rule_has_a_severity_says_what_to_do_and_is_tested() -> None:
    tests = (MONITORING / "alerts_test.yml").read_text()
    for rule in rules():
        assert rule["labels"]["severity"] in ("critical", "warning", "info"), rule
        assert rule["annotations"].keys() == {"summary", "action"}, rule
        assert re.search(rf"\b{rule['alert']}\b", tests), f"monitoring/alerts_test.yml does not test {rule['alert']}"


def test_scraped_jobs_are_those_of_the_rules() -> None:
    for name in (MONITORING / "prometheus.yml",):
        config = yaml.safe_load(Path(name).read_text())
        jobs = {job["job_name"] for job in config["scrape_configs"]}
        assert jobs == {"regionkeeper-store", "regionkeeper-master", "regionkeeper-server"}
