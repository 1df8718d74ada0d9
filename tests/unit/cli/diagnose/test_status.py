"""What `rk status` shows of the store: also the nodes that --store did not name (B8)."""

from __future__ import annotations

import pytest

from cli.common import output
from cli.common.names import Names
from cli.common.options import Globals
from cli.diagnose import health
from cli.diagnose.status import Status, show, unnamed_nodes
from regions.messages import TransitionStep
from tests.support.helpers import free_ports

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


def test_a_parked_region_is_parked_in_the_list_of_transitions(capsys: pytest.CaptureFixture[str]) -> None:
    """No master retries the region, so OFFLINE would suggest that the region only waits for its turn.

    Tried: with the state alone in `_rit` both rows are OFFLINE; without the error its last cell is empty.
    """
    steps = [
        TransitionStep(1, f"t.{number}", 0, "master", "", "OFFLINE", "open failed", attempt=2, error="disk is full",
                       parked=bool(number)) for number in range(2)
    ]  # fmt: skip
    show(Status([], in_transition=steps, rit=2), Names([], None), output.console())
    waits, parked = capsys.readouterr().out.splitlines()[-2:]
    assert waits.split() == ["t.0-0", "OFFLINE", "open", "failed", "2", "disk", "is", "full"]
    assert parked.split() == ["t.1-0", "PARKED", "open", "failed", "2", "disk", "is", "full"]


def test_the_verdict_opens_no_second_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each session is two writes of the store. `rk status --check` has read the addresses already.

    Tried: without the look at `known` in _registered the store is asked.
    """

    def refused(*_: object) -> object:
        raise AssertionError("a second session")

    monkeypatch.setattr(health, "open_named_store", refused)
    store, master, server = (f"127.0.0.1:{port}" for port in free_ports(3))
    given = Globals()
    given.store = store
    found = health.find(given, 0.5, health.Registered([master], [server])).findings
    assert [one.address for one in found.masters] == [master]
    assert [one.address for one in found.servers] == [server]
