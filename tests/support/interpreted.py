"""For simulations that patch the product: compiled modules take no patches and no subclasses."""

from __future__ import annotations

import os
import sys

from coord.compiled import PURE_VARIABLE
from coord.raft import core


def is_interpreted() -> bool:
    """Return True if bugs can be planted in the hot modules."""
    return str(core.__file__).endswith(".py")


def run_interpreted(module: str) -> None:
    """Replace this process by `python -m module`, same arguments, with an interpreted store, unless it has one."""
    if not is_interpreted():
        os.environ[PURE_VARIABLE] = "1"
        os.execv(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]])
