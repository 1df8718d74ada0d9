"""A simulated cluster checks the invariants of every server's replicas after each event."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

from regionserver.replica.machine import Replicas
from regionserver.replica.states import Phase
from simulation.cluster.cluster import Options
from simulation.run import run
from tests.support.interpreted import is_interpreted


@pytest.mark.skipif(not is_interpreted(), reason="the fault is planted by a patch; compiled code takes none")
def test_a_wrong_count_in_one_server_ends_the_run() -> None:
    """Other processes could not see the mistake; the violation names the server and the invariant."""
    real = Replicas._announce

    def announce(self: Replicas, replica: Any, now_ms: int) -> None:
        real(self, replica, now_ms)
        self._counts[Phase.OPEN] += 1

    with mock.patch.object(Replicas, "_announce", announce):
        verdict = run(Options(5, drill="server-crash"))
    assert "phases: 0 replicas are open, but 1 are counted" in verdict.violation
