"""For tests and simulations that patch the product: compiled modules take no patches and no subclasses."""

from __future__ import annotations

import os
import sys

import pytest

from coord.compiled import PURE_VARIABLE
from coord.raft import core


def is_interpreted() -> bool:
    """Return True if bugs can be planted in the hot modules."""
    return str(core.__file__).endswith(".py")


#: Mark of a test that patches or subclasses compiled modules. `make test` runs such tests in its interpreted part
#: (tests/parts.py, COMPILED_TESTS).
needs_interpreted = pytest.mark.skipif(
    not is_interpreted(), reason="a compiled module takes no patches; RK_PURE=1 runs it"
)


def run_interpreted(module: str) -> None:
    """Replace this process by `python -m module`, same arguments, with an interpreted store, unless it has one."""
    if not is_interpreted():
        os.environ[PURE_VARIABLE] = "1"
        os.execv(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]])
