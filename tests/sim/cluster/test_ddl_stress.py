"""The simulated DDL stress run (TS-04): it passes, it does enough operations, and it finds every planted bug."""

from __future__ import annotations

from collections import Counter

import pytest

from simulation.run import Options, run
from tests.sim.cluster.planted_ddl import DDL_BUGS, DdlBug
from tests.support.interpreted import is_interpreted

SEEDS = range(1, 6)


def test_the_catalog_equals_the_acknowledged_operations() -> None:
    """Each operation has one definite result during failovers (TS-04, MF-09 to MF-15, OC-01 to OC-11). At the end the
    store, the master and the servers agree with the results, for every tablet."""
    seen: Counter[str] = Counter()
    for seed in SEEDS:
        verdict = run(Options(seed, "ddl-storm", masters=3, duration_s=8))
        repeat = f"python -m cli simulate --drill ddl-storm --masters 3 --duration 8 --seed {seed}"
        assert verdict.ok, f"{verdict.violation}; repeat: {repeat}"
        seen.update(verdict.counts)
    for kind in ("create", "add column", "drop column", "replace schema", "rename", "delete"):
        assert seen[f"ddl {kind}: ok"] >= 3, kind
    assert seen["tenures"] >= 3 * len(SEEDS)


@pytest.mark.skipif(not is_interpreted(), reason="bugs are planted by patches; compiled code takes none")
@pytest.mark.parametrize("bug", DDL_BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_fault_is_found_where_the_sound_system_holds(bug: type[DdlBug]) -> None:
    """KUDU-1358, KUDU-1353, KUDU-1374, KUDU-495, and request ids: found within `seeds` seeds, and not without the
    fault."""
    found = bug().hunt()
    assert found is not None, f"{bug.__doc__} not caught by {bug.seeds} seeds"
    verdict = bug().try_seed(found.seed, planted=False)
    assert verdict.ok, f"seed {found.seed} without the fault: {verdict.violation}"
