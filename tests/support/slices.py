"""The slices in which the kernel runs a thread."""

from __future__ import annotations

import ctypes
import platform
import struct
import threading
from collections.abc import Callable
from typing import Any, Final

from coord.env_os import run_in_slices
from tests.support.reactors import PATIENCE_S

#: Number of the system call sched_getattr(2), and the size of its structure.
_GETATTR: Final = {"x86_64": 315, "aarch64": 275}
_SIZE: Final = 48


def slice_s(thread: int = 0) -> float:
    """Return the slice of a thread in seconds, by default of the calling one; 0 if the kernel does not say."""
    number = _GETATTR.get(platform.machine())
    if number is None:
        return 0.0
    found = ctypes.create_string_buffer(_SIZE)
    if ctypes.CDLL(None).syscall(number, thread, found, _SIZE, 0):
        return 0.0
    runtime_ns: int = struct.unpack("=IIQiIQQQ", found.raw)[5]
    return runtime_ns / 1e9


def on_a_thread(work: Callable[[], Any]) -> Any:
    """Return the result of `work` on a thread of its own: no other test gets the slices that it sets."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join(PATIENCE_S)
    return found[0]


def sets_slices() -> bool:
    """Return True if the kernel runs threads in slices of a wanted length."""

    def works() -> bool:
        run_in_slices(0.0005)
        return slice_s() == 0.0005

    return bool(on_a_thread(works))
