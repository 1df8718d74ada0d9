"""Kubernetes by URL and settings: the requests that reach the API server, and the error when it refuses."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from regions.plan import Params
from regions.plan.artifact.files import write_snapshot
from regions.plan.problem.scenarios import scenario
from tests.spark.jobs import job_command, run_job
from tests.spark.standalone import spark_missing

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(bool(spark_missing()), reason=spark_missing())]


class Refusing(BaseHTTPRequestHandler):
    """An API server that forbids everything."""

    asked: list[str] = []

    def _refuse(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.asked.append(f"{self.command} {self.path}")
        self.send_response(403)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = _refuse

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Log nothing."""


@pytest.fixture
def api() -> Iterator[str]:
    """Return its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Refusing)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"k8s://http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_settings_reach_the_api_server_and_its_refusal_is_a_line(api: str, tmp_path: Path) -> None:
    """The namespace is that of the setting; the job ends with status 6 and names the address that refused it."""
    write_snapshot(tmp_path / "in", scenario("uniform", regions=20, servers=3, seed=1), Params())
    conf = ["spark.kubernetes.namespace=planners", "spark.kubernetes.container.image=none"]
    job = run_job(job_command(tmp_path / "in", tmp_path / "out", api, conf))
    assert job.process.returncode == 6, job.errors[-2000:]
    assert any("/namespaces/planners/" in request for request in Refusing.asked), Refusing.asked
    assert job.last["message"].startswith(f"no Spark session on {api}: ")
    assert "\n" not in job.last["message"]
