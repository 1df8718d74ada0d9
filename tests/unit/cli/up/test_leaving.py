"""Store nodes that were removed: how they are found, and what `rk up` records about them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from cli.common.errors import UsageFaultError
from cli.common.local import LocalCluster, command_line, design
from cli.common.options import Globals
from cli.up.growing.growth import next_daemon
from cli.up.growing.leaving import Leaving, may_have_left, removed
from cli.up.shape import shape_of
from cli.up.supervisor import Ended, Supervisor

WITHOUT_3 = b"server.1=127.0.0.1:1:2:participant\nserver.2=127.0.0.1:3:4:participant\nversion=7"


class Forgetful:
    """A supervisor that only records what it forgets."""

    def __init__(self) -> None:
        self.forgotten: list[str] = []

    def forget(self, name: str) -> None:
        self.forgotten.append(name)


def cluster(folder: Path, before: LocalCluster | None = None, base_port: int | None = None) -> LocalCluster:
    """Return a cluster of three store nodes, or what the next start makes of `before`."""
    return design(shape_of(Globals(), before, None, None, None, None, base_port, None), folder, before)


def leaving(local: LocalCluster, configuration: bytes) -> tuple[Leaving, Forgetful, list[str]]:
    supervisor, said = Forgetful(), list[str]()

    def say(text: str, **_: Any) -> None:
        said.append(text)

    return Leaving(local, cast("Supervisor", supervisor), lambda: configuration, say), supervisor, said


def test_only_a_node_that_the_configuration_lacks_was_removed(tmp_path: Path) -> None:
    """An unreadable or missing configuration removes nobody."""
    nodes = cluster(tmp_path).coord
    assert removed(nodes, WITHOUT_3) == [nodes[2]]
    assert removed(nodes, b"") == []
    assert removed(nodes, b"server.1=?") == []


def test_only_an_exit_with_status_0_that_nobody_asked_for_is_looked_into(tmp_path: Path) -> None:
    local = cluster(tmp_path)
    node, master = local.coord[2], local.masters[0]
    assert may_have_left(Ended(node, 0, expected=False))
    assert not may_have_left(Ended(node, 1, expected=False))
    assert not may_have_left(Ended(node, 0, expected=True))
    assert not may_have_left(Ended(master, 0, expected=False))


def test_a_removed_node_leaves_and_the_next_start_is_without_it(tmp_path: Path) -> None:
    """The founders' text stays, for the identity of the store follows from it; the number is not used again.

    Tried: without `former` in command_line, --peers names two nodes; without it in next_daemon, the new node is
    store-3.
    """
    local = cluster(tmp_path)
    part, supervisor, said = leaving(local, WITHOUT_3)
    assert not part.handle(Ended(local.coord[1], 0, expected=False)), "node 2 is a member"
    assert part.handle(Ended(local.coord[2], 0, expected=False))
    assert supervisor.forgotten == ["store-3"]
    assert said == [
        f"store-3 was removed from the store and is not started again; {tmp_path / 'store-3'} may be deleted"
    ]
    again = cluster(tmp_path, local)
    assert [one.name for one in again.coord] == ["store-1", "store-2"]
    assert again.store == local.store == "127.0.0.1:21801,127.0.0.1:21802"
    words = command_line(again.coord[0], again, shape_of(Globals(), again, None, None, None, None, None, None))
    assert words[words.index("--peers") + 1] == "1=127.0.0.1:21811,2=127.0.0.1:21812,3=127.0.0.1:21813"
    assert next_daemon(again, "store", "", tmp_path, lambda _: True).name == "store-4"
    with pytest.raises(UsageFaultError, match="store-3 was removed"):
        cluster(tmp_path, local, 22800)


def test_a_start_takes_out_founders_only(tmp_path: Path) -> None:
    """A node that joins is not a member before `rk up add store` has added it."""
    local = cluster(tmp_path)
    joining = next_daemon(local, "store", "", tmp_path, lambda _: True)
    local.coord.append(joining)
    part, supervisor, _ = leaving(local, WITHOUT_3)
    part.leave_founders()
    assert supervisor.forgotten == ["store-3"]
    assert joining in local.coord
