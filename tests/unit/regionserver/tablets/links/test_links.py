"""Links between servers: present and lost processes, and their addresses, with real sockets."""

from __future__ import annotations

import pytest

from coord.peers import dialing, partition
from regionserver.tablets.links import dialing as server_dialing
from regionserver.tablets.links import links as links_module
from regionserver.tablets.links.dialing import ADDRESSES_MAX
from tests.unit.regionserver.tablets.links.servers import Machine, Server


def pair(machine: Machine) -> tuple[Server, Server]:
    """Return two servers, linked in both directions."""
    a, b = machine.server("a"), machine.server("b")
    a.knows(b)
    joined(machine, a, b)
    return a, b


def joined(machine: Machine, *servers: Server) -> None:
    """Wait until each server has a link to each other one."""
    machine.until(
        lambda: all(a.links.is_connected(b.name) for a in servers for b in servers if a is not b), "links both ways"
    )


def test_frames_go_both_ways_although_one_end_knows_the_other(machine: Machine) -> None:
    a, b = pair(machine)
    assert a.events == [("introduced", "b", 1)]
    assert b.events == [("introduced", "a", 1)]
    for number in range(1, 4):
        assert a.beat("b", number)
        assert b.beat("a", number)
    machine.until(lambda: a.numbers("b") == b.numbers("a") == [1, 2, 3], "frames in order")


def test_three_servers_have_a_link_per_direction_and_pair(machine: Machine) -> None:
    servers = [machine.server(name) for name in "abc"]
    for server in servers:
        server.knows(*servers)  # its own address is included, and ignored
    joined(machine, *servers)
    machine.turns()
    for server in servers:
        assert not server.links.is_connected(server.name)
        assert sorted(server.links._accepted) == sorted({"a", "b", "c"} - {server.name})
        assert len(server.events) == 2


def test_dead_process_is_reported_at_once_and_once(machine: Machine) -> None:
    """The end of the connection is reported, without a timeout."""
    a, b = pair(machine)
    a.events.clear()
    b.links.stop()
    machine.until(lambda: a.events, "the loss")
    machine.turns()
    assert a.events == [("lost", "b", 1)]
    assert not a.links.is_connected("b")
    assert not a.beat("b", 1)


def test_restart_at_another_port_is_another_process(machine: Machine) -> None:
    """The restarted server dials its peers and announces its address, without help of another process."""
    a, b = pair(machine)
    a.events.clear()
    c = b.restarted()
    c.knows(a)
    joined(machine, a, c)
    assert a.events == [("lost", "b", 1), ("introduced", "b", 2)]
    assert a.beat("b", 5)
    machine.until(lambda: c.numbers("a") == [5], "a frame at the new address")
    assert b.numbers("a") == []


def test_quick_restart_counts_as_death_though_no_connection_broke(machine: Machine) -> None:
    """As after a power cut: the connections of the machine stay, and a new process sends a hello."""
    a, b = pair(machine)
    a.events.clear()
    again = machine.server("b", start_code=2)
    again.knows(a)
    joined(machine, a, again)
    assert a.events == [("lost", "b", 1), ("introduced", "b", 2)]
    assert a.beat("b", 7)
    machine.until(lambda: again.numbers("a") == [7], "a frame for the new process")
    assert b.numbers("a") == []
    a.events.clear()
    machine.turns(100)
    assert a.events == []  # the end of the former process's connections is not reported again


def test_new_process_that_only_answers_is_recognized(machine: Machine) -> None:
    """The peer has not dialed yet: its answer to our hello has the start code."""
    a, b = pair(machine)
    a.events.clear()
    b.links.stop()
    again = machine.server("b", start_code=2)
    a.links.learn("b", again.address)
    machine.until(lambda: len(a.events) == 2 and a.links.is_connected("b"), "a link to the new process")
    assert a.events == [("lost", "b", 1), ("introduced", "b", 2)]


def test_hello_of_an_earlier_start_is_rejected(machine: Machine, warnings: list[str]) -> None:
    a = machine.server("a")
    new = machine.server("b", start_code=9)
    new.knows(a)
    joined(machine, a, new)
    old = machine.server("b", start_code=8)
    old.knows(a)
    machine.until(lambda: any("a later start of that server, 9, is known" in line for line in warnings), "a rejection")
    machine.turns()
    assert a.events == [("introduced", "b", 9)]
    assert not old.links.is_connected("a")
    assert a.beat("b", 1)


def test_answer_of_an_earlier_start_is_rejected(machine: Machine, warnings: list[str]) -> None:
    a = machine.server("a")
    new = machine.server("b", start_code=9)
    new.knows(a)
    joined(machine, a, new)
    new.links.stop()
    old = machine.server("b", start_code=8)
    a.links.learn("b", old.address)
    machine.until(lambda: any("replies with start code 8" in line for line in warnings), "a rejection")
    assert not a.links.is_connected("b")


def test_stale_address_is_left_for_one_that_answers(machine: Machine) -> None:
    """A configuration may name an address that another server has taken over: uuids are compared, not addresses."""
    a, b, other = machine.server("a"), machine.server("b"), machine.server("x")
    a.links.learn("b", b.address)
    a.links.learn("b", other.address)
    machine.until(lambda: a.links.is_connected("b"), "a link to the right server")
    assert ("introduced", "x", 1) not in a.events
    assert other.events == []


def test_address_learned_later_does_not_break_a_link(machine: Machine) -> None:
    a, _ = pair(machine)
    for port in range(1, 10):
        a.links.learn("b", ("127.0.0.1", port))
    machine.turns()
    assert a.links.is_connected("b")
    assert len(a.links._links["b"]._addresses) == ADDRESSES_MAX


def test_full_queue_costs_the_link_and_the_link_comes_back(machine: Machine) -> None:
    a, b = pair(machine)
    a.events.clear()
    frame = a.frame("b")
    a.links._queue.limit = 2 * len(frame)
    assert a.links.send("b", frame)
    assert a.links.send("b", frame)  # at the limit
    assert not a.links.send("b", frame)
    assert a.events == [("lost", "b", 1)]
    joined(machine, a, b)
    assert a.events[-1] == ("introduced", "b", 1)
    assert a.beat("b", 4)
    machine.until(lambda: b.numbers("a") == [4], "a frame after the loss")


def test_cut_drops_frames_silently_and_heals(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = pair(machine)
    cuts = partition.Partition(machine.reactor, a.links)
    cuts.cut(is_incoming=True, is_outgoing=False)
    assert b.beat("a", 1)
    assert a.beat("b", 1)
    machine.until(lambda: b.numbers("a") == [1], "the other direction")
    cuts.cut(is_incoming=False, is_outgoing=True)
    assert a.beat("b", 2)  # as if it were sent
    assert b.beat("a", 2)
    machine.until(lambda: a.numbers("b") == [2], "the other direction")
    assert b.numbers("a") == [1]
    assert a.links.is_connected("b")
    a.events.clear()
    cuts.heal()
    machine.until(lambda: ("lost", "b", 1) in a.events, "connections that have lost frames are closed")
    joined(machine, a, b)
    assert a.beat("b", 3)
    machine.until(lambda: b.numbers("a") == [1, 3], "frames after the cut")


def test_cut_ends_connections_as_the_kernel_would(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition, "GIVE_UP_MS", 50)
    a, b = pair(machine)
    a.events.clear()
    cuts = partition.Partition(machine.reactor, a.links)
    cuts.cut(is_incoming=True, is_outgoing=True)
    machine.until(lambda: a.events, "the end of the connections")
    machine.turns(100)
    assert a.events == [("lost", "b", 1)]
    assert not a.links.is_connected("b")
    assert not b.links.is_connected("a")  # nothing is accepted either
    cuts.heal()
    joined(machine, a, b)


def test_server_that_is_away_is_dialed_again_with_growing_pauses(machine: Machine) -> None:
    a = machine.server("a")
    b = machine.server("b")
    b.links.stop()
    a.knows(b)
    link = a.links._links["b"]
    machine.until(lambda: link.pause_ms == dialing.REDIAL_MAX_MS, "the longest pause")
    assert not link.is_stopped
    assert a.events == []


def test_stranger_that_cannot_be_reached_is_forgotten(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any process with the secret can send a hello with an invented address."""
    monkeypatch.setattr(dialing, "REDIAL_MAX_MS", 5)
    a, b = machine.server("a"), machine.server("b")
    b.links.learn("a", a.address)
    b.links._own.address = ("127.0.0.1", 1)
    machine.until(lambda: ("lost", "b", 1) in a.events, "a is tired of it")
    assert ("introduced", "b", 1) in a.events
    b.links.stop()
    machine.until(lambda: not a.links._links, "nothing is left of it")
    machine.turns(50)
    assert not a.links._links


def test_strangers_are_bounded(machine: Machine, monkeypatch: pytest.MonkeyPatch, warnings: list[str]) -> None:
    monkeypatch.setattr(links_module, "STRANGERS_MAX", 2)
    a = machine.server("a")
    others = [machine.server(name) for name in "bc"]
    for other in others:
        other.knows(a)
    joined(machine, a, *[])
    machine.until(lambda: len(a.events) == 2, "two strangers")
    late = machine.server("d")
    late.knows(a)
    machine.until(lambda: any("2 servers of no known tablet" in line for line in warnings), "a rejection")
    a.knows(late)  # a member by now
    joined(machine, a, late)


def test_stop_reports_nothing(machine: Machine) -> None:
    a, b = pair(machine)
    a.events.clear()
    a.links.stop()
    machine.until(lambda: ("lost", "a", 1) in b.events, "the other end")
    assert a.events == []
    assert not a.links.send("b", b"")


def test_server_that_is_not_registered_is_dialed_rarely_until_it_comes_back(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_dialing, "UNREGISTERED_MAX_MS", 2 * dialing.REDIAL_MAX_MS)
    a, b = machine.server("a"), machine.server("b")
    b.links.stop()
    a.knows(b)
    link = a.links._links["b"]
    a.links.listed(registered=[], members=["b"])
    machine.until(lambda: link.pause_ms == 2 * dialing.REDIAL_MAX_MS, "a longer pause than for others")
    again = machine.server("b", start_code=2)
    a.links.learn("b", again.address)
    joined(machine, a, again)
    monkeypatch.setattr(dialing, "REDIAL_MIN_MS", 10 * 60_000)
    link.pause_ms = 10 * 60_000
    again.links.stop()
    machine.until(lambda: not link.is_up(), "the end of the connection")
    third = machine.server("b", start_code=3)
    link._addresses = [third.address]
    a.links.listed(registered=["b"], members=["b"])
    joined(machine, a, third)


def test_retired_server_is_forgotten(machine: Machine) -> None:
    """Such a server is not registered, is a member of no tablet here, and cannot be reached."""
    a, b, c = machine.server("a"), machine.server("b"), machine.server("c")
    b.links.stop()
    a.knows(b, c)
    joined(machine, a, c)
    a.links.listed(registered=["b"], members=[])
    a.links.listed(registered=[], members=["b"])
    assert set(a.links._links) == {"b", "c"}
    a.links.listed(registered=[], members=[])
    assert set(a.links._links) == {"c"}, "c is there, registered or not"
    assert a.links.is_connected("c")


def test_peer_learns_that_it_is_not_heard(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames from a arrive, those of b and c do not: b's tablets must not continue to follow a leader on a."""
    a, b, c = (machine.server(name) for name in "abc")
    for server in (a, b, c):
        server.knows(a, b, c)
    joined(machine, a, b, c)
    assert b.beat("a", 1)
    assert a.beat("b", 1)
    machine.until(lambda: a.numbers("b") == b.numbers("a") == [1], "frames both ways")
    b.events.clear()
    monkeypatch.setattr(links_module, "SILENT_LOOKS", 2)
    cuts = partition.Partition(machine.reactor, a.links)
    cuts.cut(is_incoming=True, is_outgoing=False)
    machine.until(lambda: ("lost", "a", 1) in b.events, "the end of the connection")
    assert ("lost", "b", 1) in a.events
    # No frame has ever come from c: it shares no tablet with a.
    assert a.links.is_connected("c")
    assert ("lost", "a", 1) not in c.events
    cuts.heal()
    joined(machine, a, b)
