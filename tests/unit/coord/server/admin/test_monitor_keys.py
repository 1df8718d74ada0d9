"""`mntr` beside names recorded from Apache ZooKeeper 3.9.5: alone, as a leader, as a follower of three; and `dump`."""

from __future__ import annotations

from pathlib import Path

import pytest

from coord.server.admin.four_letter import FourLetterWords
from coord.server.config.settings import StoreSettings
from coord.server.node import Node
from coord.wire import opcodes as op
from coord.wire import records as r
from tests.support.store_nodes import StoreNodes

#: Names that ZooKeeper does not have; docs/store/guarantees.md names them.
OURS_ALONE = {
    "zk_disk_full",
    "zk_snapshot_failed",
    "zk_p99_fsynctime",
    "zk_raft_term",
    "zk_raft_commit_index",
    "zk_raft_applied_index",
}
RECORDED = Path(__file__).parents[4] / "testdata" / "zookeeper" / "mntr-3.9.5.txt"
MODES = {"s": "standalone", "l": "leader", "f": "follower"}
#: Names that exporters and dashboards read from `mntr` (telegraf, Datadog, Grafana), in every mode.
READ_BY_DASHBOARDS = {
    *("zk_version", "zk_server_state", "zk_avg_latency", "zk_min_latency", "zk_max_latency", "zk_packets_received"),
    *("zk_packets_sent", "zk_num_alive_connections", "zk_outstanding_requests", "zk_znode_count", "zk_watch_count"),
    *("zk_ephemerals_count", "zk_approximate_data_size", "zk_open_file_descriptor_count", "zk_uptime"),
    *("zk_max_file_descriptor_count", "zk_global_sessions", "zk_local_sessions", "zk_connection_rejected"),
    *("zk_last_client_response_size", "zk_avg_fsynctime", "zk_max_fsynctime"),
}


def recorded() -> dict[str, tuple[str, bool]]:
    """Return the recorded names with the modes that have them, and whether our store has them."""
    found = {}
    for line in RECORDED.read_text().splitlines():
        if line and not line.startswith("#"):
            mark, modes, name = line.split()
            found[name] = modes, mark == "+"
    return found


def words_of(nodes: StoreNodes, node: Node) -> FourLetterWords:
    number = next(number for number, one in nodes.nodes.items() if one is node)
    settings = StoreSettings(
        node_id=number, data_dir=Path("/nowhere"), client_address=("127.0.0.1", 2181), words=frozenset({"mntr", "dump"})
    )
    return FourLetterWords(settings, node, [0.001, 0.003])


def keys_of(words: FourLetterWords) -> dict[str, str]:
    lines = words.answer(b"mntr").decode().splitlines()
    return dict(line.split("\t") for line in lines)  # type: ignore[misc]


@pytest.fixture(scope="module")
def answers() -> dict[str, dict[str, str]]:
    """Return names and values by mode."""
    one, three = StoreNodes(1), StoreNodes(3)
    leader = three.leader()
    follower = next(node for node in three.nodes.values() if node is not leader)
    found = {"s": keys_of(words_of(one, one.leader()))}
    return found | {"l": keys_of(words_of(three, leader)), "f": keys_of(words_of(three, follower))}


@pytest.mark.parametrize("mode", MODES)
def test_names_are_zookeepers_and_the_list_says_which(answers: dict[str, dict[str, str]], mode: str) -> None:
    """A name that is added or lost must be marked in the recorded list."""
    theirs = {name: ours for name, (modes, ours) in recorded().items() if mode in modes}
    ours = set(answers[mode])
    assert ours - set(theirs) == OURS_ALONE
    assert {name for name, is_ours in theirs.items() if is_ours} == ours - OURS_ALONE
    assert not READ_BY_DASHBOARDS - ours


def test_the_state_of_a_member_is_in_zookeepers_words(answers: dict[str, dict[str, str]]) -> None:
    assert answers["l"]["zk_peer_state"] == "leading - broadcast"
    assert answers["f"]["zk_peer_state"] == "following - broadcast"
    assert "zk_peer_state" not in answers["s"], "as in ZooKeeper: a server alone is no peer"


def test_the_state_of_a_member_without_a_leader() -> None:
    nodes = StoreNodes(3)
    leader = nodes.leader()
    follower = next(node for node in nodes.nodes.values() if node is not leader)
    follower.core.leader = 0
    assert words_of(nodes, follower).peer_state() == "looking - election"


def test_rejected_connections_are_counted() -> None:
    nodes = StoreNodes(1)
    words = words_of(nodes, nodes.leader())
    words.rejected = lambda: 7
    assert keys_of(words)["zk_connection_rejected"] == "7"


def test_every_node_lists_the_ephemerals_of_all_sessions() -> None:
    """The list includes ephemerals of sessions that are connected to another node."""
    nodes = StoreNodes(3)
    nodes.leader()
    created: list[str] = []
    for node in nodes.nodes.values():
        client = nodes.client(node)
        path = f"/of-{len(created)}".encode()
        create = r.CreateRequest(op.OP_CREATE, path, b"", r.OPEN_ACL, r.CREATE_EPHEMERAL)
        client.request(1, op.OP_CREATE, r.encode_create(create))
        nodes.settle()
        created.append(path.decode())
    for node in nodes.nodes.values():
        dump = words_of(nodes, node).answer(b"dump").decode().splitlines()
        assert "Sessions with Ephemerals (3):" in dump
        assert {line.strip() for line in dump if line.startswith("\t/")} == set(created)
