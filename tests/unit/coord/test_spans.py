"""Counted durations and the metrics made of them."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from coord.metrics.definitions import BUILD, Definition, MetricKind, add_process
from coord.metrics.spans import Spans, SpansByName

TIMES = Definition("test_seconds", MetricKind.HISTOGRAM, "Times.", ("kind",))


def test_durations_at_a_bound_belong_to_its_bucket() -> None:
    spans = Spans((0.5, 1.0))
    for seconds in (0.0, 0.5, 0.75, 1.0, 4.0):
        spans.add(seconds)
    assert spans.counts == [2, 2, 1]
    assert spans.total_s == 6.25


def test_histogram_counts_all_durations_up_to_each_bound() -> None:
    times = SpansByName((0.5, 1.0))
    for seconds in (0.1, 0.7, 9.0):
        times.add("a", seconds)
    times.add("b", 0.7)
    samples = {
        (one.name, one.labels["kind"], one.labels.get("le")): one.value
        for one in TIMES.histogram_by_name(times.by_name).samples
    }
    assert [samples["regionkeeper_test_seconds_bucket", "a", le] for le in ("0.5", "1.0", "+Inf")] == [1, 2, 3]
    assert samples["regionkeeper_test_seconds_count", "a", None] == 3
    assert samples["regionkeeper_test_seconds_sum", "b", None] == 0.7


def test_every_daemon_tells_its_build_and_its_process() -> None:
    registry = CollectorRegistry()
    add_process(registry, "master")
    families = {one.name: one for one in text_string_to_metric_families(generate_latest(registry).decode())}
    (build,) = families[BUILD.full_name].samples
    assert build.value == 1
    assert build.labels["daemon"] == "master"
    assert build.labels["form"] in ("compiled", "interpreted")
    assert {"process_resident_memory_bytes", "process_open_fds", "python_info"} <= set(families)
