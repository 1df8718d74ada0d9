"""The fold of the history at random instants equals the store's state at that time, and at the end its present
state."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from regions.cluster.history import (
    complete_history,
    parse_segment,
    stamped,
    unpack,
)
from regions.cluster.past import Picture, Point, picture_at
from regions.records.znodes import decode_transition
from regions.transitions.entries import HistoryEntry
from regions.transitions.states import Actor
from regions.transitions.steps import entries_kept
from simulation.cluster.cluster import SimulatedCluster
from simulation.drills import DRILLS
from simulation.run import Options, run

#: One sample for so many commits.
EVERY = 3


class Sample(NamedTuple):
    """The store at a zxid: transitions by key, where each replica is recorded as open, and the epoch."""

    zxid: int
    states: dict[str, str]
    locations: dict[str, str]
    #: Steps of each replica so far.
    steps: dict[str, int]
    epoch: int


class Sampler:
    """Takes samples while a simulation runs."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self.cluster = cluster
        self.samples: list[Sample] = []
        self._commits = 0
        observer = cluster.observer
        was = observer.committed

        def committed(machine: Any, outcome: Any) -> None:
            was(machine, outcome)
            self._commits += 1
            if self._commits % EVERY == 0:
                self.samples.append(self.sample(outcome.zxid))

        observer.committed = committed  # type: ignore[method-assign]

    def sample(self, zxid: int) -> Sample:
        observer = self.cluster.observer
        locations = {
            f"{region.region_id}-{one.replica}": one.uuid
            for region in observer.shadow.regions.values()
            for one in region.replicas
            if one.uuid is not None and one.start_code is not None
        }
        steps = {key: len(found) for key, found in observer.history._committed.items()}
        states = {key: one.state.value for key, one in observer.shadow.transitions.items()}
        return Sample(zxid, states, locations, steps, observer.shadow.epoch)

    def entries(self) -> list[HistoryEntry]:
        """Return the whole history, as `rk history` reads it."""
        layout, nodes = self.cluster.observer._layout, self.cluster.store.truth.tree.nodes
        kept: list[HistoryEntry] = []
        found: list[tuple[Any, list[HistoryEntry]]] = []
        for raw, node in nodes.items():
            path = raw.decode()
            if path.startswith(f"{layout.history}/"):
                segment = parse_segment(path.rpartition("/")[2])
                found.append((segment, stamped(unpack(node.data or b""), node.czxid)))
            elif path.startswith(f"{layout.unassigned}/") and layout.parse_transition(path) is not None:
                kept += entries_kept(decode_transition(node.data or b"", path), node.version)
        return complete_history([one for _, part in sorted(found, key=lambda pair: pair[0]) for one in part], kept)


def _check(sample: Sample, picture: Picture, steps: dict[str, list[HistoryEntry]]) -> int:
    """Compare one sample; return the number of replicas compared.

    A step of a server has no zxid of its own. So a replica may have any state between the master's last step before
    the sample and the master's next one.
    """
    compared = 0
    for key, taken in sample.steps.items():
        life = steps[key]
        if sum(1 + one.missed for one in life) != len(life) or taken == 0:
            continue
        first = taken - 1
        while first > 0 and life[first].actor == Actor.SERVER.value:
            first -= 1
        last = taken - 1
        while last + 1 < len(life) and life[last + 1].actor == Actor.SERVER.value:
            last += 1
        then = picture.replicas.get(key)
        state = sample.states.get(key, "")
        if then is None:  # its region was replaced, or its number was given up
            assert (key in sample.states, life[last].after) == (False, ""), (sample.zxid, key)
            continue
        assert then.state in {one.after for one in life[first : last + 1]}, (sample.zxid, key)
        if first == last:
            assert then.state == state, (sample.zxid, key)
        if not then.state and not state and then.open_on:
            assert sample.locations.get(key) == then.open_on, (sample.zxid, key)
        compared += 1
    return compared


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_the_picture_at_random_instants_is_what_the_store_had_then(seed: int) -> None:
    """N2: over killed masters, killed servers, lost connections and outages of the store."""
    samplers: list[Sampler] = []

    def play(cluster: SimulatedCluster) -> None:
        samplers.append(Sampler(cluster))
        DRILLS["random"](cluster)

    verdict = run(Options(seed), script=play)
    assert verdict.ok, verdict.violation
    [sampler] = samplers
    entries = sampler.entries()
    steps: dict[str, list[HistoryEntry]] = {}
    for one in entries:
        if one.key:
            steps.setdefault(one.key, []).append(one)
    compared = 0
    for sample in sampler.samples:
        picture = picture_at(entries, Point(zxid=sample.zxid))
        compared += _check(sample, picture, steps)
    assert compared > 50, f"the run was idle: {compared}"
    # The fold of everything is the present.
    now, picture = sampler.sample(0), picture_at(entries, Point(at_ms=2**60))
    there = {key: one.state for key, one in picture.replicas.items() if one.state}
    assert there == now.states
    resting = {key: one.open_on for key, one in picture.replicas.items() if not one.state and one.open_on}
    assert resting.items() <= now.locations.items()
    assert picture.epoch == now.epoch
