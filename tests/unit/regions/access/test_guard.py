"""The guard: refusals are summed up, a server reports as itself alone, damaged grants are not believed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from coord.rpc.wire import RpcError
from coord.security.principal import SERVER, USER, Principal
from regions import messages as ms
from regions.access.guard import Guard
from regions.access.permissions import AGE_MAX_S
from regions.access.refusals import IDENTITIES_MAX, LINES_MAX, SPAN_S, Refusals
from regions.messages.heartbeat import Heartbeat
from regions.records.acts.grants import FIRST
from regions.records.model import Incarnation
from regions.records.znodes import encode

EVE = Principal(USER, "eve")


class Bench:
    """A guard whose clock and timer the test moves."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.due: list[tuple[float, Callable[[], None]]] = []
        self.refused: list[list[str]] = []
        self.damaged: list[str] = []
        self.guard = Guard(
            lambda: self.now_s, lambda s, act: self.due.append((s, act)), self.refused.append, self.damaged.append
        )
        self.guard.seen(encode(FIRST), 0, 0.0)

    def refuse(self, request: object, who: Principal = EVE) -> str:
        """Send a request that is refused; return the code."""
        with pytest.raises(RpcError) as caught:
            self.guard.check(who, request, lambda _scope, _request: None)
        return caught.value.code


def test_refused_requests_are_summed_up() -> None:
    """However many there are: one timer, and one line with the number of times."""
    bench = Bench()
    for _ in range(1_000):
        bench.refuse(ms.ListTables())
    bench.refuse(ms.ListServers())
    [(after_s, act)] = bench.due
    assert after_s == SPAN_S
    act()
    [[first, second]] = bench.refused
    assert first == "ListTables: user:eve may not READ the cluster: ask an admin for `rk grant eve read` (1000 times)"
    assert second.startswith("ListServers: ")
    bench.refuse(ms.ListTables())
    assert len(bench.due) == 2, "the next span has a timer of its own"


def test_a_process_that_ends_writes_its_last_summary() -> None:
    """Fails if `stop` takes nothing: the refusals of the last second were lost."""
    bench = Bench()
    bench.refuse(ms.CreateTable("mine"))
    bench.guard.stop()
    [[line]] = bench.refused
    assert line.startswith("CreateTable: user:eve may not ADMIN the cluster")
    bench.guard.stop()
    assert len(bench.refused) == 1


def test_a_summary_has_a_bounded_number_of_lines() -> None:
    refusals = Refusals()
    noted = [refusals.note("user:eve", f"line {number}") for number in range(LINES_MAX + 5)]
    assert noted == [True] + [False] * (LINES_MAX + 4)
    lines = refusals.take()
    assert len(lines) == LINES_MAX + 1
    assert lines[-1] == "5 other refused requests: 5 of user:eve"
    assert refusals.take() == []


def test_refusals_of_one_do_not_hide_those_of_another() -> None:
    """One refused request after ten others of the same second was counted, and in no line."""
    bench = Bench()
    for kind in (ms.ListTables, ms.ListServers, ms.ListRit, ms.ListContacts, ms.ShutdownCluster, ms.ShowRetirement):
        for who in (Principal(SERVER, "s1"), Principal(USER, "mallory")):
            bench.refuse(kind("s") if kind is ms.ShowRetirement else kind(), who)  # type: ignore[operator]
    bench.refuse(ms.CreateTable("mine"))
    bench.due[0][1]()
    [lines] = bench.refused
    assert len(lines) == LINES_MAX + 1
    assert "CreateTable: user:eve may not ADMIN the cluster: ask an admin for `rk grant eve admin`" in lines
    assert lines[-1] == "3 other refused requests: 2 of user:mallory, 1 of server:s1"


def test_a_summary_is_bounded_however_many_identities_are_refused() -> None:
    refusals = Refusals()
    for number in range(IDENTITIES_MAX + 5):
        for line in range(LINES_MAX + 1):
            refusals.note(f"user:u{number}", f"u{number} line {line}")
    assert sum(len(one.counts) for one in refusals._found.values()) == IDENTITIES_MAX * LINES_MAX
    lines = refusals.take()
    assert lines[:LINES_MAX] == [f"u{number} line 0" for number in range(LINES_MAX)]
    every = (IDENTITIES_MAX + 5) * (LINES_MAX + 1)
    assert lines[LINES_MAX:] == [
        f"{every - LINES_MAX} other refused requests: "
        f"11 of user:u99, 11 of user:u98, 11 of user:u97, 11 of user:u96, 11 of user:u95, {every - 65} of others"
    ]
    assert refusals.take() == []


def test_a_server_sends_its_own_heartbeats_alone() -> None:
    """Another server's heartbeats would keep a dead server alive, or report its regions closed."""
    bench = Bench()
    one, two = (f"{number * 8}-0000-4000-8000-000000000000" for number in "12")
    own = Heartbeat("c", Incarnation(one, 7), 1)
    bench.guard.check(Principal(SERVER, one), own, lambda _scope, _request: None)
    assert bench.refuse(own, Principal(SERVER, two)) == ms.FORBIDDEN
    bench.due[0][1]()
    assert bench.refused == [[f"Heartbeat: server:{two} may not send the heartbeat of server {one}"]]


def test_a_certificate_with_a_name_sends_the_heartbeats_of_one_server() -> None:
    """Operators name certificates as they like: `rk certs issue --daemon server:s1`.

    Tried: with `who.name != uuid` as the whole check, as before, the first heartbeat is refused.
    """
    bench = Bench()

    def beat(name: str, uuid: str) -> None:
        bench.guard.check(Principal(SERVER, name), Heartbeat("c", Incarnation(uuid, 7), 1), lambda _s, _r: None)

    beat("s1", "a")
    beat("s2", "b")
    beat("s1", "a")
    assert bench.refuse(Heartbeat("c", Incarnation("a", 7), 1), Principal(SERVER, "s2")) == ms.FORBIDDEN
    beat("s1", "c")  # its directory was empty
    beat("s3", "a")  # nobody else has that uuid any more


def test_damaged_grants_change_nothing_and_grow_old() -> None:
    """They are reported once, and the admin is refused when the bound has passed."""
    bench = Bench()
    bench.now_s = AGE_MAX_S
    for _ in range(3):
        bench.guard.seen(b"{", 1, bench.now_s)
    assert len(bench.damaged) == 1
    admin = Principal(USER, "admin")
    bench.guard.check(admin, ms.ListTables(), lambda _scope, _request: None)
    bench.now_s += 0.1
    assert bench.refuse(ms.ListTables(), admin) == ms.BUSY
    assert bench.due == [], "a request that cannot be decided is no refusal"
    bench.guard.seen(b"", -1, bench.now_s)
    bench.guard.check(admin, ms.ListTables(), lambda _scope, _request: None)
