"""What keeps a region server from its work, for `/health`: a supervisor that reads 503 there may start it again.

A short loss of the store is no illness: the server serves nothing meanwhile and joins anew. It is one when it lasts.
The shared directory is looked at by a thread of its own, for a volume that hangs must not stop the process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

#: A server that has not served for this long, or twice its session's timeout if that is more.
UNSERVING_S: Final = 5.0
#: Regions of a lost session that have not closed after this long.
CLOSING_S: Final = 60.0
#: How often the shared directory is looked at, and how long a look may take.
LOOK_EVERY_S: Final = 1.0
LOOK_S: Final = 10.0


class SharedWatch:
    """Looks at the shared directory again and again; `check` raises what is wrong with it."""

    def __init__(self, check: Callable[[], None], now_s: Callable[[], float]) -> None:
        self._check = check
        self._now_s = now_s
        self._trouble = ""
        self._began_s: float | None = None
        self._stopped = threading.Event()

    def start(self) -> None:
        """Begin; the thread ends with the process."""
        threading.Thread(target=self._run, name="shared directory", daemon=True).start()

    def stop(self) -> None:
        """Look no more."""
        self._stopped.set()

    def trouble(self) -> str:
        """Return what is wrong with the directory, "" if nothing is."""
        began_s = self._began_s
        took_s = 0.0 if began_s is None else self._now_s() - began_s
        return f"the shared directory has not answered for {took_s:.0f} s" if took_s >= LOOK_S else self._trouble

    def look(self) -> None:
        """Look once."""
        self._began_s = self._now_s()
        try:
            self._check()
        except Exception as error:  # whatever it is, the directory cannot be used
            self._trouble = str(error) or type(error).__name__
        else:
            self._trouble = ""
        finally:
            self._began_s = None

    def _run(self) -> None:
        while not self._stopped.wait(LOOK_EVERY_S):
            self.look()


class ServerHealth:
    """The reasons, with the times since when they hold. Times are `now_s()`."""

    def __init__(self, now_s: Callable[[], float], session_timeout_ms: int, watch: SharedWatch) -> None:
        self._now_s = now_s
        self._unserving_s = max(UNSERVING_S, 2 * session_timeout_ms / 1000)
        self._watch = watch
        self._unserving_since_s: float | None = now_s()

    def note(self, is_serving: bool) -> None:
        """Note whether the server may serve now; to be called about once a second."""
        if is_serving:
            self._unserving_since_s = None
        elif self._unserving_since_s is None:
            self._unserving_since_s = self._now_s()

    def reasons(self, why_unserving: str, closing_s: float) -> list[str]:
        """Return the reasons why this server is not healthy, in words; [] if it is healthy.

        `why_unserving` says why it does not serve if it does not; `closing_s`: for how long the regions of a lost
        session have been closing.
        """
        found: list[str] = []
        since_s = self._unserving_since_s
        unserving_s = 0.0 if since_s is None else self._now_s() - since_s
        if unserving_s >= self._unserving_s:
            found.append(f"not serving for {unserving_s:.0f} s: {why_unserving}")
        if closing_s >= CLOSING_S:
            found.append(f"the regions of a lost session have been closing for {closing_s:.0f} s")
        trouble = self._watch.trouble()
        return [*found, trouble] if trouble else found
