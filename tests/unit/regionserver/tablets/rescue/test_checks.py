"""When an operator may force a configuration."""

from __future__ import annotations

from typing import Any

import pytest

from regionserver.tablets.rescue.checks import RescueFacts, objection
from regionserver.tablets.rescue.messages import ForceConfiguration

ORDER = ForceConfiguration("s", "t", 1, 4, 50, [1], 8)
FACTS = RescueFacts(ORDER, "s", 1, 7, 4, 50, 0, (1, 2, 3), (1,))


def test_the_last_member_may_go_on_alone() -> None:
    assert objection(FACTS) == ""


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"server": "another"}, "this server is another"),
        ({"number": 0}, "does not run here"),
        ({"number": 2}, "does not run here"),
        ({"leader": 3}, "member 3 leads"),
        ({"answering": (1, 2)}, "a majority of the voters 1, 2, 3 answers (1, 2)"),
        ({"order": ForceConfiguration("s", "t", 1, 4, 50, [], 8)}, "must be some of the voters"),
        ({"order": ForceConfiguration("s", "t", 1, 4, 50, [2], 8)}, "must be some of the voters"),
        ({"order": ForceConfiguration("s", "t", 1, 4, 50, [1, 9], 8)}, "must be some of the voters"),
        ({"order": ForceConfiguration("s", "t", 1, 4, 50, [1, 2, 3], 8)}, "must be some of the voters"),
        ({"order": ForceConfiguration("s", "t", 1, 4, 50, [1], 7)}, "the replica is in term 7"),
        ({"last_index": 51}, "its log ends at entry 51 of term 4 now"),
        ({"last_term": 5}, "its log ends at entry 50 of term 5 now"),
    ],
)
def test_each_check_refuses_alone(changes: dict[str, Any], why: str) -> None:
    assert why in objection(FACTS._replace(**changes))
