"""Differences from ZooKeeper that the comparison of raw frames passes over are documented."""

from __future__ import annotations

from pathlib import Path

from tests.compat.frames import KNOWN


def test_known_differences_are_documented() -> None:
    """docs/store describes each known difference in the words of the list."""
    pages = (Path(__file__).parents[2] / "docs" / "store").glob("*.md")
    text = " ".join(" ".join(page.read_text() for page in sorted(pages)).split())
    missing = [known.documented for known in KNOWN if known.documented not in text]
    assert not missing
