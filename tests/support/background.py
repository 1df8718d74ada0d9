"""Work beside a test, on a thread that is stopped by an event."""

from __future__ import annotations

import threading


class Background:
    """A thread that does the work of a subclass until it is stopped."""

    def __init__(self) -> None:
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def ask_to_stop(self) -> None:
        """Ask the thread to end after its present step."""
        self._is_over.set()

    def stop(self, limit_s: float | None = None) -> None:
        """Stop the thread, and wait until it has ended, at most `limit_s` seconds."""
        self.ask_to_stop()
        self._thread.join(limit_s)

    def _run(self) -> None:
        """Work until `_is_over` is set."""
        raise NotImplementedError
