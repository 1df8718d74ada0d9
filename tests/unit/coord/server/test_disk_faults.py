"""A disk that fails at any call of a node: the permitted effects of a full disk and of a failing disk.

The short run of three nodes has every kind of write: records, new segments, votes, snapshots, pruning, and a snapshot
that one of them receives. At each call in turn one node's disk becomes full for a while, or fails once.
"""

from __future__ import annotations

import errno

import pytest

from coord.errors import OK
from coord.server.peers.snapshot_transfer import REFUSED_MS
from coord.wire import opcodes as op
from coord.wire import records
from coord.wire.values import OPEN_ACL, CreateRequest
from tests.support.store_nodes import TICK_MS, Client, StoreNodes

ROOM_NEEDED = ("write", "create")


class Life:
    """Three nodes. The disk of `victim` (leader or other) fails from call number `at` on."""

    def __init__(self, victim: str, code: int, at: int) -> None:
        self.code = code
        self.at = at
        self.calls = 0
        self.fired = 0
        self.nodes = StoreNodes(3, snapshot_entries=8, keep_entries=2, segment_bytes=1500)
        leader = self.nodes.leader()
        follower = self.nodes.follower()
        chosen = leader if victim == "leader" else follower
        self.victim = chosen.settings.node_id
        self.other = next(i for i in self.nodes.ids() if i not in (self.victim, leader.settings.node_id))
        self.client: Client | None = None
        self.asked = 0
        self.acknowledged: set[int] = set()
        self.is_over = False

    def trouble(self, name: str) -> None:
        """Fail the present call: the hook of the victim's disk."""
        if self.is_over:
            return
        if self.code == errno.ENOSPC and name not in ROOM_NEEDED:
            return
        self.calls += 1
        if self.calls > self.at and (self.code == errno.ENOSPC or not self.fired):
            self.fired += 1
            raise OSError(self.code, "injected")

    def run(self, ticks: int) -> None:
        """Let time pass. Restart a node that its disk has stopped, from its durable state."""
        for _ in range(ticks):
            try:
                self.nodes.run(1)
            except OSError:
                # As in the service: any escaping error stops the node.
                self.restart(self.victim)
            if self.victim in self.nodes.stopped:
                self.restart(self.victim)

    def restart(self, node: int) -> None:
        """End the process and start it again."""
        assert self.code != errno.ENOSPC, f"a full disk stops a node: {self.nodes.stopped}"
        self.nodes.stopped.pop(node, None)
        if node in self.nodes.nodes:
            self.nodes.crash(node)
        self.nodes.disks[node].on_call = self.trouble
        self.nodes.start(node)

    def write(self, count: int) -> None:
        """Create znodes by a client of any node, and remember the answered requests."""
        if self.client is None or not self.client.is_open or self.client.node not in self.nodes.nodes.values():
            self.client = Client(self.nodes.nodes[self.other], self.nodes.clock)
            self.client.connect(timeout_ms=10_000)
            self.run(8)
        for _ in range(count):
            self.asked += 1
            body = records.encode_create(CreateRequest(op.OP_CREATE, b"/n%d" % self.asked, bytes(60), OPEN_ACL, 0))
            self.client.request(self.asked, op.OP_CREATE, body)
            self.run(1)
        self.run(3)
        self.acknowledged |= {xid for xid, _, err, _ in self.client.replies() if xid > 0 and err == OK}

    def all(self) -> None:
        """Run everything."""
        nodes = self.nodes
        nodes.may_stop = Exception
        self.write(6)
        nodes.disks[self.victim].on_call = self.trouble
        self.write(10)
        if self.victim in nodes.nodes:
            for peer in nodes.ids():
                nodes.cut(self.victim, peer)
        self.run(30)
        self.write(24)  # it falls behind the logs of the others
        for peer in nodes.ids():
            nodes.join(self.victim, peer)
        self.run(20)
        self.write(4)
        self.is_over = True
        self.run((REFUSED_MS + 3000) // TICK_MS)
        self.write(4)
        self.run(20)
        nodes.clock.now_ms += nodes.leader().settings.snapshot_again_ms
        self.run(3)

    def check(self) -> None:
        """Check that no acknowledged write is missing, and that all nodes have the same state."""
        nodes = self.nodes
        assert len(nodes.nodes) == 3
        assert len({(node.machine.last_zxid, node.machine.digest()) for node in nodes.nodes.values()}) == 1
        for node in nodes.nodes.values():
            missing = [xid for xid in self.acknowledged if b"/n%d" % xid not in node.machine.tree.nodes]
            assert not missing, missing
            assert not node.is_full
            assert node.snapshot_policy.error == ""
        names = nodes.disks[self.victim].names("snap")
        assert not [name for name in names if name.endswith(".tmp")], names


@pytest.mark.parametrize("victim", ["leader", "follower"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO], ids=["full", "failing"])
def test_trouble_at_every_call(victim: str, code: int) -> None:
    """A full disk never stops a node; a failing one may. No acknowledged write is lost, and afterwards the nodes work
    as before."""
    at = 0
    lives = 0
    while True:
        life = Life(victim, code, at)
        life.all()
        if not life.fired:
            break
        life.check()
        assert len(life.acknowledged) >= 20, f"call {at}: {len(life.acknowledged)} writes were answered"
        lives += 1
        at += 1 + at // 16
    assert lives >= 12


def test_node_that_cannot_list_its_snapshots_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """As without a free descriptor: the log is pruned later."""

    def refuse() -> int:
        raise OSError(errno.EMFILE, "injected")

    nodes = StoreNodes(1, snapshot_entries=8, keep_entries=2, segment_bytes=1500)
    node = nodes.leader()
    client = nodes.client(node)
    with monkeypatch.context() as patched:
        patched.setattr(node.snapshot_policy.snapshots, "log_floor", refuse)
        for xid in range(1, 41):
            body = records.encode_create(CreateRequest(op.OP_CREATE, b"/n%d" % xid, bytes(60), OPEN_ACL, 0))
            client.request(xid, op.OP_CREATE, body)
            nodes.run(1)
        assert node.snapshot_policy.index > 8
        segments = len(nodes.disks[1].names("wal"))
    node.take_snapshot()
    nodes.run(2)
    assert len(nodes.disks[1].names("wal")) < segments
