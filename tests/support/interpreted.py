"""For simulations that patch the store: compiled modules take no patches."""

from __future__ import annotations

import os
import sys

from coord.compiled import PURE_VARIABLE
from coord.raft import core


def run_interpreted(module: str) -> None:
    """Replace this process by `python -m module`, same arguments, with an interpreted store, unless it has one."""
    if not str(core.__file__).endswith(".py"):
        os.environ[PURE_VARIABLE] = "1"
        os.execv(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]])
