"""The single configuration changes by which a request is carried out."""

from __future__ import annotations

from typing import Any

import pytest

from coord.errors import BAD_ARGUMENTS
from coord.raft.membership import Configuration
from coord.server.config.addresses import MemberAddress, with_members
from coord.server.membership import steps
from coord.server.membership.request import RECONFIG, MembershipRequest, RefusedError


def _config() -> Configuration:
    members = {i: MemberAddress(i, (f"h{i}", 1), 2, (f"h{i}", 3)) for i in (1, 2, 3, 4)}
    return with_members(Configuration([1, 2, 3], [], [4]), members)


def _steps(**fields: Any) -> list[str]:
    request = MembershipRequest(RECONFIG, **fields)
    request.check()
    target = steps.target_for(request, _config())
    return [repr(step) for step in steps.steps_to(target, _config(), 1, renews=True)]


def test_steps_of_a_reconfig() -> None:
    """Nodes are added first and removed last; the leader hands over before all other steps."""
    assert _steps(joining=["server.5=h5:1:2"], leaving=["2", "4"]) == ["add 5", "remove 4", "remove 2"]
    assert _steps(joining=["server.4=h4:1:2;h4:3"]) == ["add 4"]
    assert _steps(joining=["server.2=h2:1:2:observer;h2:3"]) == ["demote 2"]
    assert _steps(joining=["server.2=h2:9:2;h2:3"]) == ["move 2"]
    assert _steps(leaving=["9"]) == ["renew 0"]
    assert _steps() == ["renew 0"], "as in ZooKeeper, even a request for nothing makes a configuration of its own"
    assert _steps(leaving=["1"]) == ["transfer 0"]
    assert _steps(members=["server.1=h1:1:2;h1:3", "server.5=h5:1:2"]) == ["add 5", "remove 4", "remove 2", "remove 3"]
    for wrong in ({"leaving": ["1", "2", "3"]}, {"members": ["server.7=h7:1:2"]}, {"joining": ["server.5=h1:1:2"]}):
        with pytest.raises(RefusedError) as refused:
            _steps(**wrong)
        assert refused.value.code == BAD_ARGUMENTS
