"""constraints.lock: the same pins as constraints.txt, each with its hashes."""

from __future__ import annotations

import re

from tests.support.sources import ROOT

_PIN = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)", re.MULTILINE)


def pins(name: str) -> dict[str, str]:
    """Return version by normalized name."""
    return {re.sub(r"[-_.]+", "-", one).lower(): version for one, version in _PIN.findall((ROOT / name).read_text())}


def test_the_lock_has_the_pins_of_the_constraints() -> None:
    """After a change of constraints.txt, `make lock` writes the lock."""
    assert pins("constraints.lock") == pins("constraints.txt")


def test_every_pin_has_hashes_and_names_no_host() -> None:
    """pip refuses a pin without a hash; where the files come from is the installer's choice."""
    text = (ROOT / "constraints.lock").read_text()
    assert "://" not in text
    entries = re.split(r"\n(?=[A-Za-z0-9])", text)
    assert len(entries) == len(pins("constraints.txt")) + 1  # the heading
    for entry in entries[1:]:
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), entry[:60]
