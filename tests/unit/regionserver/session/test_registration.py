"""Membership: joining through accidents, leftovers, fencing, and the lease by a clock of the test's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from twisted.internet.defer import Deferred, ensureDeferred, fail, succeed
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from coord.client.session import SessionState
from coord.errors import (
    BadVersion,
    ConfigError,
    ConnectionLoss,
    MultiFailed,
    NoAuth,
    NodeExists,
    NoNode,
    OperationError,
)
from coord.wire.records import Stat
from regions.records import znodes
from regions.records.model import ClusterRecord, ServerRecord
from regionserver.session import registration as report
from regionserver.session.lease import MARGIN, Lease
from regionserver.session.registration import Registration

PATHS = znodes.Layout("/rk")
RECORD = ServerRecord("me", "host", 1, 50)
MY_SESSION, OTHER_SESSION = 11, 22


class ScriptedClient:
    """A session over a small tree; `failing` is the number of next requests that lose their connection."""

    def __init__(self) -> None:
        self.timeout_ms = 3000
        self.session_id = MY_SESSION
        self.znodes: dict[str, tuple[bytes, int, int]] = {}  # (data, version, owner)
        self.failing = 0
        self.refuse: OperationError | None = None
        self.before_multi: Callable[[], None] | None = None
        self.syncs: list[Deferred[None]] = []
        self.watches: list[Callable[[int, str, int], None]] = []
        self.tell: Callable[[SessionState], object] = lambda _state: None
        self.log: list[str] = []

    def on_state(self, callback: Callable[[SessionState], object]) -> Callable[[], None]:
        self.tell = callback
        return lambda: None

    def _answer(self, what: str, work: Callable[[], Any]) -> Deferred[Any]:
        self.log.append(what)
        if self.failing:
            self.failing -= 1
            return fail(ConnectionLoss(""))
        try:
            return succeed(work())
        except Exception as error:
            return fail(error)

    def sync(self, path: str) -> Deferred[None]:
        if path == PATHS.epoch:
            return succeed(None)
        waiting: Deferred[None] = Deferred()
        self.syncs.append(waiting)
        return waiting

    def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False) -> Deferred[str]:
        def work() -> str:
            if path in self.znodes:
                raise NodeExists(path)
            if ephemeral and self.refuse is not None:
                raise self.refuse
            self.znodes[path] = (data, 0, self.session_id if ephemeral else 0)
            return path

        return self._answer(f"create {path}", work)

    def _stat(self, path: str) -> Stat:
        if path not in self.znodes:
            raise NoNode(path)
        stat = Stat()
        _, stat.version, stat.ephemeral_owner = self.znodes[path]
        return stat

    def get(self, path: str) -> Deferred[Any]:
        return self._answer(
            f"get {path}", lambda: (self.znodes[path][0] if path in self.znodes else b"", self._stat(path))
        )

    def set(self, path: str, data: bytes, version: int = -1) -> Deferred[None]:
        def work() -> None:
            there = self._stat(path).version
            if version not in (-1, there):
                raise BadVersion(path)
            self.znodes[path] = (data, there + 1, self.znodes[path][2])

        return self._answer(f"set {path}", work)

    def exists(self, path: str, watch: Callable[[int, str, int], None]) -> Deferred[Any]:
        self.watches.append(watch)
        return self._answer(f"exists {path}", lambda: self._stat(path) if path in self.znodes else None)

    def multi(self, operations: list[Any]) -> Deferred[None]:
        gone, registration = operations

        def work() -> None:
            if self.refuse is not None:
                raise MultiFailed(1, self.refuse, [None, self.refuse])
            if gone.path not in self.znodes or self._stat(gone.path).version != gone.version:
                raise MultiFailed(0, BadVersion(gone.path), [BadVersion(gone.path), None])
            self.znodes[registration.path] = (registration.data, 0, self.session_id)

        if self.before_multi is not None:
            self.before_multi()
        return self._answer(f"replace {gone.path}", work)


class MembershipTests(SynchronousTestCase):
    """One membership over a scripted client."""

    def setUp(self) -> None:
        self.reactor = Clock()
        self.client = ScriptedClient()
        self.changes: list[bool] = []
        self.lease = Lease()
        self.client.znodes[PATHS.cluster] = (znodes.encode(ClusterRecord("c1")), 0, 0)
        self.adopted: list[str] = []
        self.rivals: set[int] = set()
        self.member = self.membership()
        self.path = PATHS.server("me")

    def membership(self, adopt: Callable[[str], None] | None = None, *, belongs: bool = False) -> Registration:
        client: Any = self.client
        return Registration(
            self.reactor,
            client,
            PATHS,
            self.lease,
            self.reactor.seconds,
            self.changes.append,
            adopt or self.adopted.append,
            belongs=belongs,
            rivals=self.rivals,
        )

    def join(self) -> Deferred[None]:
        return ensureDeferred(self.member.join(RECORD))

    def joined(self) -> None:
        self.successResultOf(self.join())
        self.client.syncs.pop(0).callback(None)

    def test_joining_writes_the_record_and_learns_the_epoch(self) -> None:
        """It is an ephemeral of this session; the epoch is the store's."""
        self.client.znodes[PATHS.epoch] = (b"", 9, 0)
        self.joined()
        assert self.client.znodes[self.path] == (znodes.encode(RECORD), 0, MY_SESSION)
        assert (self.member.is_joined, self.member.epoch) == (True, 9)

    def test_registration_survives_broken_connections(self) -> None:
        """However many requests are lost, the server is registered once."""
        for lost in range(1, 7):
            self.setUp()
            self.client.failing = lost
            joining = self.join()
            for _ in range(10):
                self.reactor.advance(report.RETRY_S)
            self.successResultOf(joining)
            assert self.client.znodes[self.path][2] == MY_SESSION

    def test_a_registration_whose_reply_was_lost_is_recognized(self) -> None:
        """The znode exists and belongs to this server."""
        self.client.znodes[self.path] = (znodes.encode(RECORD), 0, MY_SESSION)
        self.joined()
        assert not any(line.startswith("replace") for line in self.client.log)

    def leftover(self) -> None:
        former = ServerRecord("me", "host", 1, 49)
        self.client.znodes[self.path] = (znodes.encode(former), 2, OTHER_SESSION)

    def test_the_registration_of_the_former_start_is_replaced_in_one_write(self) -> None:
        """The lock on the data directory proves the former start dead; the server must never seem gone."""
        self.leftover()
        self.joined()
        assert f"replace {self.path}" in self.client.log
        assert znodes.decode_server(self.client.znodes[self.path][0]).start_code == 50

    def test_a_registration_of_the_same_uuid_on_another_host_is_waited_for(self) -> None:
        """Our uuid is registered on another machine, which may be alive."""
        for other in (ServerRecord("me", "elsewhere", 1, 49), ServerRecord("me", "host", 1, 51)):
            self.setUp()
            self.client.znodes[self.path] = (znodes.encode(other), 0, OTHER_SESSION)
            joining = self.join()
            self.reactor.advance(report.POLL_S)
            self.assertNoResult(joining)
            del self.client.znodes[self.path]
            self.reactor.advance(report.POLL_S)
            self.successResultOf(joining)

    def test_a_registration_that_another_process_has_taken_over_is_not_taken_back(self) -> None:
        """The data directory was copied. The next registrations wait, ever longer, until that session ends."""
        self.joined()
        self.client.znodes[self.path] = (znodes.encode(ServerRecord("me", "host", 2, 49)), 0, OTHER_SESSION)
        self.client.watches.pop()(3, self.path, 0)
        assert "another process" in self.successResultOf(self.member.over)
        self.client.session_id, self.client.log = 33, []
        self.member = self.membership()
        joining = self.join()
        for _ in range(600):
            self.reactor.advance(0.5)
        self.assertNoResult(joining)
        reads = self.client.log.count(f"get {self.path}")
        assert 300 / report.RIVAL_POLL_S_MAX <= reads <= 20, reads
        assert f"replace {self.path}" not in self.client.log
        del self.client.znodes[self.path]
        self.reactor.advance(report.RIVAL_POLL_S_MAX)
        self.successResultOf(joining)

    def test_a_former_registration_may_expire_meanwhile(self) -> None:
        """The store was faster."""
        self.leftover()
        self.client.before_multi = lambda: self.client.znodes.pop(self.path, None) and None
        joining = self.join()
        self.reactor.advance(report.RETRY_S)
        self.successResultOf(joining)
        assert self.client.znodes[self.path][2] == MY_SESSION

    def test_a_rejection_by_the_store_is_raised_to_the_caller(self) -> None:
        """For example without permission: an immediate retry would not help."""
        self.client.refuse = NoAuth(self.path)
        self.failureResultOf(self.join(), NoAuth)
        self.leftover()
        self.failureResultOf(self.join(), NoAuth)

    def test_a_deleted_registration_ends_the_membership(self) -> None:
        """The server is fenced: its regions are given away."""
        self.joined()
        del self.client.znodes[self.path]
        self.client.watches.pop()(2, self.path, 0)
        assert "fenced" in self.successResultOf(self.member.over)
        assert self.changes == [True, False]

    def test_a_read_without_a_connection_is_repeated(self) -> None:
        """The watch must not be lost with the connection."""
        self.joined()
        self.client.failing = 1
        self.client.watches.pop()(2, self.path, 0)
        self.assertNoResult(self.member.over)
        del self.client.znodes[self.path]
        self.reactor.advance(report.RETRY_S)
        self.successResultOf(self.member.over)

    def test_an_overwritten_registration_is_restored(self) -> None:
        """Otherwise the next active master would count this server as dead."""
        self.joined()
        self.client.znodes[self.path] = (b"rubbish", 1, MY_SESSION)
        self.client.watches.pop()(3, self.path, 0)
        assert self.client.znodes[self.path] == (znodes.encode(RECORD), 2, MY_SESSION)
        leaving = znodes.encode(msgspec.structs.replace(RECORD, leaving=True))
        self.client.znodes[self.path] = (leaving, 3, MY_SESSION)
        self.client.watches.pop()(3, self.path, 0)
        assert self.client.znodes[self.path][0] == leaving
        self.assertNoResult(self.member.over)

    def test_the_latest_announced_record_is_restored(self) -> None:
        """A server that is handing over must not look as if it stayed."""
        self.joined()
        leaving = msgspec.structs.replace(RECORD, leaving=True)
        ensureDeferred(self.member.announce(leaving))
        self.client.znodes[self.path] = (b"rubbish", 7, MY_SESSION)
        self.client.watches.pop()(3, self.path, 0)
        assert self.client.znodes[self.path] == (znodes.encode(leaving), 8, MY_SESSION)

    def test_a_registration_in_doubt_renews_no_lease(self) -> None:
        """X10: the master counts the lease from the deletion, so nothing may extend it after the event."""
        self.joined()
        self.reactor.advance(1.0)
        self.client.failing = 3
        self.client.watches.pop()(2, self.path, 0)
        self.client.syncs[-1].callback(None)
        length_s = 3.0 * (1 - MARGIN)
        assert self.lease.left_s(self.reactor.seconds()) <= length_s - 1.0
        for _ in range(4):
            self.reactor.advance(report.RETRY_S)
        self.client.syncs[-1].callback(None)
        self.reactor.advance(0.4)
        self.client.syncs[-1].callback(None)
        assert self.lease.left_s(self.reactor.seconds()) > length_s - 0.5, "it was still ours: all is well again"

    def test_an_expired_session_ends_the_registration(self) -> None:
        """The end is reported once."""
        self.joined()
        self.client.tell(SessionState.EXPIRED)
        self.client.tell(SessionState.CLOSED)
        assert "expired" in self.successResultOf(self.member.over)

    def test_a_suspended_session_does_not_end_the_registration(self) -> None:
        """The lease decides how long to serve."""
        self.joined()
        self.client.tell(SessionState.SUSPENDED)
        assert self.changes == [True]
        self.assertNoResult(self.member.over)

    def test_the_lease_ends_without_replies(self) -> None:
        """By the clock, not by a notification; it returns with the next reply."""
        self.joined()
        length_s = 3.0 * (1 - MARGIN)
        self.reactor.advance(length_s - 0.01)
        assert self.changes == [True]
        self.reactor.advance(0.01)
        assert self.changes == [True, False]
        self.client.syncs[-1].callback(None)
        assert self.changes == [True, False, True]

    def test_a_late_reply_does_not_restore_the_lease(self) -> None:
        """Frozen for ten seconds: the answers in the socket belong to old requests."""
        self.joined()
        self.reactor.advance(0.5)
        self.reactor.advance(10.0)
        asked_before_the_freeze = self.client.syncs[0]
        asked_before_the_freeze.callback(None)
        assert self.changes == [True, False]

    def test_a_foreign_cluster_is_refused_before_anything_is_written(self) -> None:
        """FN-04: started with another cluster's store or root, it joins nothing and writes nothing there."""
        before = dict(self.client.znodes)

        def refuse(cluster_id: str) -> None:
            raise ConfigError(f"this is {cluster_id}")

        self.member = self.membership(refuse, belongs=True)
        self.failureResultOf(self.join(), ConfigError)
        assert self.client.znodes == before

    def test_a_corrupt_cluster_record_is_waited_for(self) -> None:
        """The server joins when a master has rewritten the record."""
        cluster = self.client.znodes[PATHS.cluster]
        for belongs in (True, False):
            self.setUp()
            self.client.znodes[PATHS.cluster] = (b"rubbish", 1, 0)
            self.member = self.membership(belongs=belongs)
            joining = self.join()
            self.reactor.advance(report.POLL_S)
            self.assertNoResult(self.member.over)
            assert (self.adopted, self.path in self.client.znodes) == ([], not belongs)
            self.client.znodes[PATHS.cluster] = cluster
            self.reactor.advance(report.POLL_S)
            if not belongs:
                self.client.watches.pop()(3, PATHS.cluster, 0)
            self.successResultOf(joining)
            assert self.adopted == ["c1"]

    def test_a_server_of_a_cluster_waits_for_that_cluster(self) -> None:
        """The store may be the wrong one, or its first master has not started yet."""
        cluster = self.client.znodes.pop(PATHS.cluster)
        self.member = self.membership(belongs=True)
        joining = self.join()
        self.reactor.advance(report.POLL_S)
        self.assertNoResult(joining)
        assert self.client.znodes == {}
        self.client.znodes[PATHS.cluster] = cluster
        self.reactor.advance(report.POLL_S)
        self.successResultOf(joining)
        assert self.adopted == ["c1"]

    def test_a_new_server_may_start_before_the_first_master(self) -> None:
        """The server registers, and reads the cluster's id as soon as there is one, even over a lost connection."""
        cluster = self.client.znodes.pop(PATHS.cluster)
        self.joined()
        assert self.adopted == []
        self.client.znodes[PATHS.cluster] = cluster
        self.client.failing = 1
        self.client.watches.pop()(1, PATHS.cluster, 0)
        self.reactor.advance(report.RETRY_S)
        assert self.adopted == ["c1"]

    def test_nothing_is_left_running_after_the_end(self) -> None:
        """There is no timer and no renewal any more."""
        self.joined()
        self.member.end("stopping")
        self.member.end("again")
        assert self.successResultOf(self.member.over) == "stopping"
        assert self.reactor.getDelayedCalls() == []
        count = len(self.client.syncs)
        self.reactor.advance(60)
        assert len(self.client.syncs) == count
