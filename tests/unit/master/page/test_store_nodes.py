"""What the page keeps of the answers of store nodes."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.task import Clock

from master.page.store_nodes import KNOWN_MS, StoreNodes


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        (["1.5", "12"], 12.0),
        (["0.25", "not a number"], 0.25),
        ([""], math.nan),
        ([], math.nan),
    ],
)
def test_the_greatest_value_is_that_of_any_node(answers: list[str], expected: float) -> None:
    """A node that names none does not count, and old answers do not. Fails if `max` becomes `min`."""
    now_ms = [1_000]
    access: Any = SimpleNamespace(tls_context=lambda: None)
    nodes = StoreNodes(Clock(), [f"h:{number}" for number in range(len(answers))], access, lambda: now_ms[0])
    for number, value in enumerate(answers):
        nodes._answered(f"h:{number}", f"zk_server_state\tfollower\nzk_p99_fsynctime\t{value}\n", "")
    assert nodes.greatest("p99_fsynctime") == pytest.approx(expected, nan_ok=True)
    now_ms[0] += KNOWN_MS + 1
    assert math.isnan(nodes.greatest("p99_fsynctime"))
