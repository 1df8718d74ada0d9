"""A real Prometheus watches a cluster through the crash of a server: queries return data, alerts fire and clear.

Prometheus is Debian's package: `apt-get install prometheus`.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from cli.up.examples import example_path
from tests.e2e.clusters import UP_DEADLINE_S, LocalUp, free_base_port, local_up, run_rk
from tests.support.docs.dashboard import panels
from tests.support.docs.metrics import by_daemon
from tests.support.helpers import eventually, free_ports
from tests.support.sources import ROOT

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(
        shutil.which("prometheus") is None or shutil.which("promtool") is None,
        reason="NOT TESTED: alert rules and dashboard; no Prometheus here (apt-get install prometheus)",
    ),
]

MONITORING = ROOT / "monitoring"
_SHAPE = ("--store-nodes", "3", "--masters", "2", "--servers", "3", "--regions", "12", "--plan-engine", "greedy")
_COMMAND_S = 300.0
_SCRAPE_S = 1


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalUp]:
    """Yield a cluster with tablets and a table of shared regions."""
    data_dir = tmp_path_factory.mktemp("cluster") / "rk-data"
    with local_up(data_dir, "--base-port", str(free_base_port()), *_SHAPE) as up:
        up.event("up")
        split = ("--regions", "6", "--from", str(example_path()))
        done = run_rk("table", "create", "shared", *split, "--replicas", "1", "--data-dir", str(data_dir))
        assert done.returncode == 0, done.stderr
        yield up


def token_of(cluster: LocalUp) -> str:
    """Return the token that the cluster's admin ports demand."""
    credentials = cluster.credentials()
    assert credentials is not None, "the cluster is open"
    return credentials.token()


class Prometheus:
    """A running Prometheus."""

    def __init__(self, port: int) -> None:
        self._base = f"http://127.0.0.1:{port}"

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the series of an instant query."""
        url = f"{self._base}/api/v1/query?" + urllib.parse.urlencode({"query": expression})
        with urllib.request.urlopen(url, timeout=30) as reply:
            found: list[dict[str, Any]] = json.load(reply)["data"]["result"]
        return found

    def count(self, expression: str) -> int:
        """Return the number of series; 0 while Prometheus does not answer yet."""
        with contextlib.suppress(OSError):
            return len(self.query(expression))
        return 0


@pytest.fixture(scope="module")
def prometheus(cluster: LocalUp, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Yield a Prometheus with our rules, which wait for a second at most, and all daemons as targets."""
    folder = tmp_path_factory.mktemp("prometheus")
    rules = re.sub(r"(?m)^( +for:) .*$", rf"\1 {_SCRAPE_S}s", (MONITORING / "alerts.yml").read_text())
    (folder / "alerts.yml").write_text(rules)
    config = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": f"{_SCRAPE_S}s", "evaluation_interval": f"{_SCRAPE_S}s"}
    daemons = cluster.event("up")["cluster"]
    for job, kind in zip(config["scrape_configs"], ("coord", "masters", "servers"), strict=True):
        job["authorization"] = {"credentials": token_of(cluster)}
        job["static_configs"] = [{"targets": [one["admin"] for one in daemons[kind]]}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    (port,) = free_ports(1)
    words = ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([*words, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)
    try:
        found = Prometheus(port)
        eventually(lambda: found.count("up == 1") == 8, UP_DEADLINE_S, "all targets are up")
        yield found
    finally:
        process.kill()
        process.wait()


#: This cluster has keys, and no certificates.
ONLY_WITH_CERTIFICATES = {"regionkeeper_certificate_expires_seconds"}


@pytest.mark.parametrize(
    "words", ["check rules alerts.yml", "test rules alerts_test.yml", "check config prometheus.yml"]
)
def test_promtool_accepts_the_files(words: str) -> None:
    *command, name = words.split()
    done = subprocess.run(["promtool", *command, MONITORING / name], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_daemons_export_what_the_page_lists(cluster: LocalUp) -> None:
    """No metric is undocumented. A metric that one daemon lacks, such as a standby, another daemon of its kind has."""
    daemons = cluster.event("up")["cluster"]
    for kind, daemon in (("coord", "store"), ("masters", "master"), ("servers", "server")):
        exported = set()
        for one in daemons[kind]:
            headers = {"Authorization": f"Bearer {token_of(cluster)}"}
            request = urllib.request.Request(f"http://{one['admin']}/metrics", headers=headers)
            with urllib.request.urlopen(request, timeout=30) as reply:
                text = reply.read()
            lint = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, check=False)
            assert (lint.returncode, lint.stdout) == (0, b""), lint
            exported |= set(re.findall(r"# TYPE (regionkeeper_\w+)", text.decode()))
        assert exported == {one.full_name for one in by_daemon()[daemon]} - ONLY_WITH_CERTIFICATES


def test_queries_return_data_and_alerts_fire_and_clear_through_a_crash(
    cluster: LocalUp, prometheus: Prometheus
) -> None:
    rings = 'ALERTS{alertstate="firing", severity!="info"}'
    eventually(lambda: prometheus.count(rings) == 0, _COMMAND_S, "nothing rings before the crash")
    drilled = run_rk("drill", "server-crash", "--data-dir", str(cluster.data_dir), timeout_s=_COMMAND_S)
    assert drilled.returncode == 0, drilled.stdout + drilled.stderr
    rang = 'max_over_time(ALERTS{alertname="RegionKeeperDaemonDown", alertstate="firing"}[10m])'
    assert eventually(lambda: prometheus.query(rang), _COMMAND_S, "the dead server has rung")
    (alert,) = prometheus.query(rang)
    assert alert["metric"]["job"] == "regionkeeper-server"
    eventually(lambda: prometheus.count(rings) == 0, _COMMAND_S, "all alerts have cleared")

    def empty() -> list[str]:
        queries = [query for panel in panels() for query, _ in panel.queries]
        return [query for query in queries if not prometheus.query(query.replace("$__rate_interval", "10m"))]

    eventually(lambda: not empty(), _COMMAND_S, "every query of the dashboard returns data")
    deaths = prometheus.query('regionkeeper_master_transition_seconds_count{cause="server death"}')
    assert sum(float(one["value"][1]) for one in deaths) > 0
