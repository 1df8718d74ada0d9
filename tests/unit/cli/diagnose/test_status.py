"""What `rk status` shows of the store: also the nodes that --store did not name (B8)."""

from __future__ import annotations

import pytest

from cli.diagnose.status import unnamed_nodes

CONFIGURATION = b"""server.1=127.0.0.1:2888:3888:participant;127.0.0.1:2181
server.2=127.0.0.1:2889:3889:participant;127.0.0.1:2182
server.3=127.0.0.1:2890:3890:observer;0.0.0.0:2183
server.4=127.0.0.1:2891:3891:participant
version=6"""


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        (["127.0.0.1:2181"], ["127.0.0.1:2182"]),
        (["localhost:2182"], ["127.0.0.1:2181"]),
        (["127.0.0.1:2181", "127.0.0.1:2182"], []),
        (["no such host:2181"], ["127.0.0.1:2181", "127.0.0.1:2182"]),
    ],
)
def test_members_that_were_not_named_are_found(named: list[str], expected: list[str]) -> None:
    """A node that has announced no address, or only a port, cannot be asked."""
    assert unnamed_nodes(CONFIGURATION, named) == expected


@pytest.mark.parametrize("content", [b"", b"version=0", b"\xff", b"nonsense"])
def test_a_store_without_a_list_of_members_has_only_the_named_nodes(content: bytes) -> None:
    """ZooKeeper 3.4 has no such znode, and a single node of it no members."""
    assert unnamed_nodes(content, ["127.0.0.1:2181"]) == []
