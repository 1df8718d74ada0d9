"""Fixtures of the tests of splits and merges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from regionserver.tablets.splits import heirs


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the daughters that are made from all rows of the parents."""
    found: list[str] = []
    original: Callable[..., None] = heirs.make_heir

    def make(parents: Any, daughter: Any, boot: str) -> None:
        found.append(daughter.identity.tablet)
        original(parents, daughter, boot)

    monkeypatch.setattr(heirs, "make_heir", make)
    return found
