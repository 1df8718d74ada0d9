"""The pages that tools for ZooKeeper's AdminServer read from the admin port: names and types of the fields."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coord.raft.membership import Configuration
from coord.security import process
from coord.server.admin.commands import command_pages
from coord.server.admin.four_letter import FourLetterWords
from coord.server.config.addresses import Members, encode_members, parse_member
from coord.server.config.settings import StoreSettings
from coord.server.node import Node
from coord.wire import opcodes as op
from coord.wire.records import encode_path_watch
from tests.support.store_nodes import StoreNodes

SETTINGS = StoreSettings(node_id=1, data_dir=Path("/nowhere"), client_address=("127.0.0.1", 2181))


@pytest.fixture
def nodes() -> StoreNodes:
    """Return a store of one node with a client that has sent a request."""
    made = StoreNodes(1)
    client = made.client(made.leader())
    client.request(1, op.OP_EXISTS, encode_path_watch(b"/", True))
    client.drain()
    return made


def page(nodes: StoreNodes, name: str, node: Node | None = None) -> Any:
    """Return the content of one page, of the leader by default."""
    node = node or nodes.leader()
    return command_pages(SETTINGS, node, FourLetterWords(SETTINGS, node))[f"/commands/{name}".encode()]()


def test_connections(nodes: StoreNodes) -> None:
    """TLS connections are listed separately."""
    [connection] = nodes.leader().clients.connections.values()
    found = page(nodes, "connections")
    [plain] = found["connections"]
    assert (plain["remote_socket_address"], plain["last_operation"]) == ("10.0.0.1:5000", "EXIS")
    assert plain["session_id"] == connection.session_id
    assert (plain["packets_received"], plain["packets_sent"], plain["session_timeout"]) == (1, 2, 4000)
    assert (found["secure_connections"], found["command"], found["error"]) == ([], "connections", None)
    connection.is_secure = True
    assert page(nodes, "cons")["secure_connections"] == [plain]


def test_figures_are_numbers(nodes: StoreNodes) -> None:
    """Averages are numbers, too."""
    assert isinstance(page(nodes, "monitor")["avg_latency"], float)
    assert isinstance(page(nodes, "server_stats")["server_stats"]["avg_latency"], float)


def test_read_only_server_says_so(nodes: StoreNodes) -> None:
    """The mark is in the line after the version: scripts that wait for a server search for it."""
    node = nodes.leader()
    assert b"READ-ONLY" not in FourLetterWords(SETTINGS, node).answer(b"srvr")
    node.pipeline.handshake.read_only.is_on = True
    assert FourLetterWords(SETTINGS, node).answer(b"srvr").splitlines()[1].startswith(b"READ-ONLY mode")
    assert page(nodes, "is_read_only", node)["read_only"]


def test_srvr_names_an_open_door_alone(nodes: StoreNodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """`rk health` reads the line; monitors of ZooKeeper see none while the door is closed."""
    words = FourLetterWords(SETTINGS, nodes.leader())
    assert b"door" not in words.answer(b"srvr")
    monkeypatch.setattr(process, "is_securing", lambda: True)
    assert b"Open door: securing\n" in words.answer(b"srvr")


def test_observers_are_no_followers() -> None:
    """Monitors compare the followers in sync with the quorum, so observers must not count."""
    nodes = StoreNodes(3)
    leader, follower = nodes.leader(), nodes.follower()
    nodes.run(5)
    voters = [leader.core.id, follower.core.id]
    [observer] = set(nodes.ids()) - set(voters)
    for node in (leader, follower):
        node.core.configs.current = Configuration(voters, None, [observer])
    found = page(nodes, "monitor", leader)
    assert (found["learners"], found["synced_followers"], found["synced_observers"]) == (2, 1, 1)
    assert (found["synced_non_voting_followers"], found["pending_syncs"], found["quorum_size"]) == (0, 0, 2)
    found = page(nodes, "monitor", follower)
    assert found["quorum_size"] == 2
    assert "synced_followers" not in found


def test_voting_view(nodes: StoreNodes) -> None:
    """The list is sorted by id; observers do not vote."""
    assert page(nodes, "voting_view")["current_config"] == {}
    members: Members = {i: parse_member(i, f"host{i}:2888:3888;0.0.0.0:2181")[0] for i in (1, 2)}
    nodes.leader().core.configs.current = Configuration([1], None, [2], encode_members(members))
    assert page(nodes, "voting_view")["current_config"] == {
        "1": {
            "server_addresses": ["host1:2888"],
            "election_addresses": ["host1:3888"],
            "client_address": "0.0.0.0:2181",
            "learner_type": "participant",
        }
    }


def test_log_times_are_the_share_of_the_last_writes(nodes: StoreNodes) -> None:
    """Before the first write the time is unknown, not 0."""
    node = nodes.leader()
    assert FourLetterWords(SETTINGS, node).log_time_ms(0.99) is None
    words = FourLetterWords(SETTINGS, node, [0.001] * 98 + [0.02, 0.5])
    assert (words.log_time_ms(0.5), words.log_time_ms(0.99)) == (1.0, 20.0)
