"""Messages are replayed exactly, or not at all."""

from __future__ import annotations

import pytest

from regions.page import replay
from regions.page.replay import PageReplay


def test_a_listener_gets_what_it_has_missed() -> None:
    """No message comes twice, and none is left out."""
    found = PageReplay("g")
    for text in (b"a", b"b", b"c"):
        found.add(text)
    assert found.since("g.0") == [b"a", b"b", b"c"]
    assert found.since("g.2") == [b"c"]
    assert found.since("g.3") == []
    assert (found.latest_id, found.next_id()) == ("g.3", "g.4")


@pytest.mark.parametrize(
    "last_id", ["h.1", "g.4", "g.-1", "g.x", "g.", "", "1", "g.1 ", "g.99999999999999999999", "g.²"]
)
def test_other_ids_begin_anew(last_id: str) -> None:
    """Another generation, the future, and what is not an id."""
    found = PageReplay("g")
    for text in (b"a", b"b", b"c"):
        found.add(text)
    assert found.since(last_id) is None


def test_kept_messages_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """By number and by bytes; who is too far behind begins anew."""
    monkeypatch.setattr(replay, "MESSAGES_MAX", 3)
    monkeypatch.setattr(replay, "BYTES_MAX", 10)
    found = PageReplay("g")
    for _ in range(4):
        found.add(b"x")
    assert found.since("g.0") is None
    assert found.since("g.1") == [b"x"] * 3
    found.add(bytes(9))
    assert found.since("g.2") is None
    assert found.since("g.3") == [b"x", bytes(9)]
    found.add(bytes(11))
    assert found.since("g.5") is None
    assert found.since("g.6") == []
