"""Rows, parts and deltas of the page's model; `tests/testdata/page` has the transcripts."""

from __future__ import annotations

from regions.page.model import PageModel
from regions.page.rows import RowState


def test_a_row_that_a_part_has_carried_is_sent_even_if_it_has_changed_back() -> None:
    """A new listener has got the value between; only a delta can correct it. Fails if `named_part` notes nothing."""
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
    assert (delta.n, delta.state, delta.since) == ([0], [RowState.OPEN.value], [0])
    assert model.take() is None
