"""coord.http: four pages and nothing else."""

from __future__ import annotations

import json
from typing import Any

from prometheus_client import CollectorRegistry, Gauge
from twisted.internet.address import IPv4Address
from twisted.internet.error import ConnectionDone
from twisted.internet.testing import MemoryReactorClock, StringTransport
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from coord import http
from coord.http import AdminHttp


class AdminPort(SynchronousTestCase):
    """Requests as bytes, answers as bytes."""

    def setUp(self) -> None:
        self.registry = CollectorRegistry()
        Gauge("regions_open", "regions", registry=self.registry).set(3)
        self.is_ready = False
        self.facts: dict[str, object] = {"lease_ms_left": 12}
        self.reactor = MemoryReactorClock()
        self.admin = AdminHttp(
            registry=self.registry,
            health=lambda: (True, {}),
            ready=lambda: (self.is_ready, self.facts),
            status=lambda: {"open": 3},
        )
        self.site = self.admin.site(self.reactor)
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

    def test_ready_in_one_role(self) -> None:
        """A load balancer finds the active master; a page without roles is ready in none."""
        self.is_ready = True
        assert self.ask("GET /ready?role=active")[0] == 503
        self.facts = {"role": "standby"}
        assert self.ask("GET /ready?role=active")[0] == 503
        assert self.ask("GET /ready")[0] == 200
        self.facts = {"role": "active"}
        assert self.ask("GET /ready?role=active")[0] == 200
        self.is_ready = False
        assert self.ask("GET /ready?role=active")[0] == 503

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
        ).site(self.reactor)
        self.site.doStart()
        self.addCleanup(self.site.doStop)
        status, body = self.ask("GET /status")
        assert status == 500
        assert "secret" not in body
        assert "Traceback" not in body
        assert len(self.flushLoggedErrors(KeyError)) == 1

    def connect(self, address: str = "10.0.0.1") -> tuple[Any, StringTransport]:
        """Return a new connection from this address."""
        channel = self.site.buildProtocol(IPv4Address("TCP", address, 1))
        assert channel is not None
        transport = StringTransport()
        channel.makeConnection(transport)
        transport.abortConnection = lambda: (
            transport.loseConnection(),
            channel.connectionLost(Failure(ConnectionDone())),
        )  # type: ignore[method-assign]
        return channel, transport

    def test_half_requests_do_not_close_the_port_to_probes(self) -> None:
        """At the bound of an address its oldest unfinished connection gives way; other addresses are not touched."""
        other = self.connect("10.0.0.2")[1]
        held = [self.connect() for _ in range(http.CONNECTIONS_PER_ADDRESS_MAX)]
        for channel, _ in held:
            channel.dataReceived(b"GET /hea")
        probe, answer = self.connect()
        probe.dataReceived(b"GET /health HTTP/1.0\r\n\r\n")
        assert b"200 OK" in answer.value()
        assert [one.disconnecting for _, one in held] == [True] + [False] * (len(held) - 1)
        assert not other.disconnecting

    def test_a_half_request_costs_no_protocol(self) -> None:
        """A crowd of half requests is a crowd of sockets, and the rest of a head makes a request of each.

        Fails if `_AdminConnection` makes twisted's protocol before the head is complete.
        """
        made: list[Any] = []
        build = self.site.wrappedFactory.buildProtocol
        self.site.wrappedFactory.buildProtocol = lambda addr: made.append(addr) or build(addr)  # type: ignore[func-returns-value]
        channel, answer = self.connect()
        for part in (b"GET /health HT", b"TP/1.0\r\nhost: x\r\n", b"a: b\r\n"):
            channel.dataReceived(part)
        assert made == []
        channel.dataReceived(b"\r\n")
        assert len(made) == 1
        assert b"200 OK" in answer.value()

    def test_the_bound_in_all_holds_for_many_addresses(self) -> None:
        """The oldest unfinished connection gives way before one that idles between two requests."""
        idle = self.connect("10.0.1.1")
        idle[0].dataReceived(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        held = [self.connect(f"10.0.0.{n}")[1] for n in range(http.CONNECTIONS_MAX - 1)]
        self.connect("10.0.2.1")
        assert [one.disconnecting for one in held] == [True] + [False] * (len(held) - 1)
        assert not idle[1].disconnecting

    def test_a_newcomer_is_refused_only_if_all_others_are_being_answered(self) -> None:
        """No connection is closed in the middle of an answer."""
        self.admin.actions[b"/later"] = lambda request: None
        for _ in range(http.CONNECTIONS_PER_ADDRESS_MAX):
            self.connect()[0].dataReceived(b"GET /later HTTP/1.0\r\n\r\n")
        assert self.site.buildProtocol(IPv4Address("TCP", "10.0.0.1", 1)) is None
        assert self.site.buildProtocol(IPv4Address("TCP", "10.0.0.2", 1)) is not None

    def test_a_request_must_be_complete_in_time(self) -> None:
        """One more byte does not give it more time. A connection that idles after an answer stays."""
        slow, idle, later = self.connect(), self.connect(), self.connect()
        for one in (idle, later):
            one[0].dataReceived(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        for _ in range(int(http.REQUEST_S_MAX) + 2):
            if not slow[1].disconnecting:
                slow[0].dataReceived(b"G")
            self.reactor.advance(1)
        assert [one[1].disconnecting for one in (slow, idle, later)] == [True, False, False]
        later[0].dataReceived(b"GET /he")
        self.reactor.pump([1] * 7)
        assert [one[1].disconnecting for one in (idle, later)] == [False, True]
        assert not self.reactor.getDelayedCalls(), "nothing is unfinished, so no timer"

    def test_a_process_that_was_stopped_reads_first(self) -> None:
        """The request may lie in the kernel's buffers."""
        channel, transport = self.connect()
        self.reactor.advance(60)
        assert not transport.disconnecting
        channel.dataReceived(b"GET /health HTTP/1.0\r\n\r\n")
        assert b"200 OK" in transport.value()

    def test_streams_are_counted_separately(self) -> None:
        """Open pages take no connection from probes, and have a bound of their own."""
        begun: list[bool] = []
        self.admin.actions[b"/events"] = lambda request: begun.append(self.admin.begin_stream(request))
        for _ in range(http.STREAMS_MAX + 1):
            self.connect()[0].dataReceived(b"GET /events HTTP/1.1\r\nhost: x\r\n\r\n")
        assert begun == [True] * http.STREAMS_MAX + [False]
        held = [self.connect()[1] for _ in range(http.CONNECTIONS_PER_ADDRESS_MAX - 1)]
        assert not any(one.disconnecting for one in held)

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

    def test_front_answers_the_page_alone(self) -> None:
        """`/` and `/ui/…` belong to the front, the daemon's pages stay."""
        self.admin.front = lambda request: (request.setResponseCode(203), request.finish())
        assert [self.ask(f"GET {path}")[0] for path in ("/", "/ui/x", "/status", "/uix")] == [203, 203, 200, 404]

    def test_a_foreign_host_learns_nothing(self) -> None:
        """Against DNS rebinding: pages, actions and the front alike."""
        self.admin._names = {"master1"}
        self.admin.front = self.admin.actions[b"/do"] = lambda _request: self.fail("served")
        for line in ("GET /status", "GET /", "POST /do", "GET /ui/stream"):
            assert self.ask(line)[0] == 403
        self.admin._names = {"x"}
        assert self.ask("GET /status")[0] == 200
