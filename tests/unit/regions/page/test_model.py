"""Rows, parts and deltas of the page's model; `tests/testdata/page` has the transcripts."""

from __future__ import annotations

from regions.cluster.state import ClusterState
from regions.page.model import PageModel
from regions.page.rows import RowState
from regions.records.model import RegionRecord, ReplicaLocation, TableRecord


def test_a_row_that_a_part_has_carried_is_sent_even_if_it_has_changed_back() -> None:
    """A new listener has got the value between; only a delta can correct it. Fails if `_set` forgets a row
    whose old value comes back."""
    model = PageModel(2)
    for key in "abc":
        model.put(key, "t", key, (RowState.OPEN.value, "s1", 0))
    model.mark_sent()
    for state in (RowState.CLOSING, RowState.OPEN):
        for key in "ac":
            model.put(key, "t", key, (state.value, "s1", 7 if state is RowState.CLOSING else 0))
        if state is RowState.CLOSING:
            assert model.named_part(0, 0, 0).state == [RowState.CLOSING.value, RowState.OPEN.value]
    delta = model.take()
    assert delta is not None
    assert (delta.n, delta.state, delta.since) == ([0, 2], [RowState.OPEN.value] * 2, [0, 0])
    assert model.take() is None


def _world(regions: int) -> ClusterState:
    world = ClusterState()
    world.put_table(TableRecord("t", "t", regions=regions), 0)
    for at in range(regions):
        world.put_region(RegionRecord("t", f"t.{at}", replicas=(ReplicaLocation(0, "s", 1, 1),), start_key=f"{at}"), 0)
    return world


def test_a_region_that_comes_back_is_a_row_of_its_own() -> None:
    """Whichever of the two replicas is looked at first. Fails if `_drop` removes the key of another row."""
    for order in (1, -1):
        world, model = _world(2), PageModel()
        former = list(world.replicas.values())
        model.look(former)
        model.mark_sent()
        world.changed = set()
        world.drop_region(world.regions["t.0"])
        world.put_region(RegionRecord("t", "t.0", replicas=(ReplicaLocation(0, "s", 1, 1),)), 0)
        model.look([former[0], world.replicas[former[0].key]][::order])
        assert model.number_of(former[0].key) == 2
        delta = model.take()
        assert delta is not None
        assert delta.new is not None
        assert (delta.n, delta.state, delta.new.key) == ([0], [RowState.GONE.value], [former[0].key])
        assert model.live == 2


def test_numbers_of_an_earlier_generation_are_not_used() -> None:
    """Its rows may be others. Fails if `look` trusts `Replica.page_row` without comparing the key."""
    world = _world(3)
    replicas = list(world.replicas.values())
    PageModel().look(replicas)
    model = PageModel()
    model.look(replicas[::-1])
    assert [model.number_of(one.key) for one in replicas] == [2, 1, 0]
    model.mark_sent()
    model.look(replicas)
    assert model.take() is None
    assert len(model) == 3
