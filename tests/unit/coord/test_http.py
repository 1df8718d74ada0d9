"""coord.http: four pages and nothing else."""

from __future__ import annotations

import json

from prometheus_client import CollectorRegistry, Gauge
from twisted.internet.testing import MemoryReactorClock, StringTransport
from twisted.trial.unittest import SynchronousTestCase

from coord import http
from coord.http import AdminHttp


class AdminPort(SynchronousTestCase):
    """Requests as bytes, answers as bytes."""

    def setUp(self) -> None:
        self.registry = CollectorRegistry()
        Gauge("regions_open", "regions", registry=self.registry).set(3)
        self.is_ready = False
        self.reactor = MemoryReactorClock()
        self.admin = AdminHttp(
            registry=self.registry,
            health=lambda: (True, {}),
            ready=lambda: (self.is_ready, {"lease_ms_left": 12}),
            status=lambda: {"open": 3},
        )
        self.site = self.admin.site()
        self.site.doStart()
        self.addCleanup(self.site.doStop)

    def ask(self, request_line: str) -> tuple[int, str]:
        """Return status and body of one request on a new connection."""
        channel = self.site.buildProtocol(None)
        transport = StringTransport()
        channel.makeConnection(transport)
        channel.dataReceived(f"{request_line} HTTP/1.0\r\nhost: x\r\n\r\n".encode())
        head, _, body = transport.value().decode().partition("\r\n\r\n")
        return int(head.split(" ", 2)[1]), body

    def test_health_and_status_are_json(self) -> None:
        """Probes need the status code, operators the content."""
        status, body = self.ask("GET /health")
        assert (status, json.loads(body)) == (200, {"healthy": True})
        status, body = self.ask("GET /status")
        assert (status, json.loads(body)) == (200, {"open": 3})

    def test_ready_follows_its_check(self) -> None:
        """503 until the daemon can take part."""
        status, body = self.ask("GET /ready")
        assert (status, json.loads(body)) == (503, {"ready": False, "lease_ms_left": 12})
        self.is_ready = True
        assert self.ask("GET /ready")[0] == 200

    def test_metrics_are_those_of_the_registry(self) -> None:
        """Prometheus text."""
        status, body = self.ask("GET /metrics")
        assert status == 200
        assert "regions_open 3.0" in body

    def test_nothing_else_is_served(self) -> None:
        """Other paths, other methods, a path with `..`."""
        assert self.ask("GET /")[0] == 404
        assert self.ask("GET /status/../etc/passwd")[0] == 404
        assert self.ask("POST /status")[0] == 405
        assert self.ask("HEAD /health") == (200, "")

    def test_a_fault_shows_no_traceback(self) -> None:
        """The caller gets a sentence, the log the traceback."""

        def broken() -> object:
            raise KeyError("a secret")

        self.site = AdminHttp(
            registry=self.registry, health=lambda: (True, {}), ready=lambda: (True, {}), status=broken
        ).site()
        self.site.doStart()
        self.addCleanup(self.site.doStop)
        status, body = self.ask("GET /status")
        assert status == 500
        assert "secret" not in body
        assert "Traceback" not in body
        assert len(self.flushLoggedErrors(KeyError)) == 1

    def test_connections_are_bounded(self) -> None:
        """Beyond the bound a connection gets no protocol, so twisted closes it."""
        for _ in range(http.CONNECTIONS_MAX):
            self.site.buildProtocol(None).makeConnection(StringTransport())
        assert self.site.buildProtocol(None) is None

    def test_long_body_ends_the_connection_and_is_kept_nowhere(self) -> None:
        """An unauthenticated port must not let clients fill memory or disk, with a known length or in chunks."""
        for head in ("content-length: 500000000", "transfer-encoding: chunked"):
            channel = self.site.buildProtocol(None)
            transport = StringTransport()
            channel.makeConnection(transport)
            channel.dataReceived(f"POST /status HTTP/1.1\r\nhost: x\r\n{head}\r\n\r\n".encode())
            chunk = b"1000\r\n" + bytes(0x1000) + b"\r\n" if "chunked" in head else bytes(0x1000)
            channel.dataReceived(chunk)
            assert not transport.disconnected
            channel.dataReceived(chunk)
            assert transport.disconnected

    def test_action_answers_for_itself(self) -> None:
        """A daemon's own path gets the whole request, with any method."""
        self.admin.actions[b"/do"] = lambda request: (request.setResponseCode(202), request.finish())
        assert self.ask("POST /do")[0] == 202
        assert self.ask("POST /do/it")[0] == 405
