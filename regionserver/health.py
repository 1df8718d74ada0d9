"""Health of a region server, for `/health`: a supervisor that reads 503 may restart the process.

A short loss of the store is normal: the server stops serving shared regions and registers again. A long loss makes the
server unhealthy, unless its tablets serve: they need no store, and a restart would end leaderships that no master could
replace meanwhile. Such a server is healthy and degraded, with the reason. A thread of its own probes the shared
directory, because a hanging volume must not block the process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol

from twisted.internet.task import LoopingCall

#: Time without service after which a server is unhealthy; twice the session timeout, if that is longer.
UNSERVING_S: Final = 5.0
#: Regions of a lost session that have not closed after this long.
CLOSING_S: Final = 60.0
#: Interval of the probes of the shared directory, and the time limit of one probe.
PROBE_EVERY_S: Final = 1.0
PROBE_S: Final = 10.0


class SharedDirectoryProbe:
    """Probes the shared directory regularly; `check` raises an exception that describes the problem."""

    def __init__(self, check: Callable[[], None], now_s: Callable[[], float]) -> None:
        self._check = check
        self._now_s = now_s
        self._problem = ""
        self._began_s: float | None = None
        self._stopped = threading.Event()

    def start(self) -> None:
        """Start the thread, which ends with the process."""
        threading.Thread(target=self._run, name="shared directory", daemon=True).start()

    def stop(self) -> None:
        """Stop probing."""
        self._stopped.set()

    def problem(self) -> str:
        """Return the fault of the directory, or ""."""
        began_s = self._began_s
        took_s = 0.0 if began_s is None else self._now_s() - began_s
        return f"the shared directory has not answered for {took_s:.0f} s" if took_s >= PROBE_S else self._problem

    def probe(self) -> None:
        """Probe the directory once."""
        self._began_s = self._now_s()
        try:
            self._check()
        except Exception as error:  # with any error the directory cannot be used
            self._problem = str(error) or type(error).__name__
        else:
            self._problem = ""
        finally:
            self._began_s = None

    def _run(self) -> None:
        while not self._stopped.wait(PROBE_EVERY_S):
            self.probe()


class ServerHealth:
    """The problems of a server, with the times since when they exist, by `now_s()`."""

    def __init__(self, now_s: Callable[[], float], session_timeout_ms: int, shared: SharedDirectoryProbe) -> None:
        self._now_s = now_s
        self._unserving_s = max(UNSERVING_S, 2 * session_timeout_ms / 1000)
        self._shared = shared
        self._unserving_since_s: float | None = now_s()

    def note(self, is_serving: bool) -> None:
        """Record whether the server may serve now; call about once a second."""
        if is_serving:
            self._unserving_since_s = None
        elif self._unserving_since_s is None:
            self._unserving_since_s = self._now_s()

    def unserving(self, why: str) -> list[str]:
        """Return a sentence if the server has not served shared regions for too long because of `why`; otherwise []."""
        since_s = self._unserving_since_s
        unserving_s = 0.0 if since_s is None else self._now_s() - since_s
        return [f"not serving for {unserving_s:.0f} s: {why}"] if unserving_s >= self._unserving_s else []

    def reasons(self, closing_s: float) -> list[str]:
        """Return the other reasons why this server is unhealthy; [] if there are none.

        `closing_s` is the time since which the regions of a lost session are closing.
        """
        found: list[str] = []
        if closing_s >= CLOSING_S:
            found.append(f"the regions of a lost session have been closing for {closing_s:.0f} s")
        problem = self._shared.problem()
        return [*found, problem] if problem else found


class HealthFacts(NamedTuple):
    """Present facts that decide the health of a server."""

    is_serving: bool  #: shared regions, that is: registered, and with a lease
    #: The server is stopping. It is no fault that it does not serve any more.
    is_leaving: bool
    #: Why the server does not serve, if it does not.
    why_unserving: str
    #: Time at which it began to close the regions of a lost session; None if it closes none.
    closing_since_s: float | None
    #: The fault of the grants in the store, or "".
    grants: str = ""


class TabletsHealth(Protocol):
    """The tablets of a server, as far as its health depends on them."""

    def is_serving(self) -> bool:
        """Return True if replicas take part in their groups and the disk answers."""
        ...

    def problem(self) -> str:
        """Return the obstacle to writes here that a restart would not remove, or ""."""
        ...


class HealthWatch:
    """Checks the server regularly, and answers `/health`."""

    def __init__(
        self,
        reactor: Any,
        now_s: Callable[[], float],
        session_timeout_ms: int,
        check: Callable[[], None],
        facts: Callable[[], HealthFacts],
        tablets: TabletsHealth | None,
    ) -> None:
        """`check` raises an exception if the shared directory cannot be used. `tablets` is None without tablets."""
        self._now_s = now_s
        self._health_facts = facts
        self._tablets = tablets
        self._probe = SharedDirectoryProbe(check, now_s)
        self._health = ServerHealth(now_s, session_timeout_ms, self._probe)
        self._noting = LoopingCall(self._note)
        self._noting.clock = reactor

    def start(self) -> None:
        """Begin to look."""
        self._probe.start()
        self._noting.start(PROBE_EVERY_S)

    def stop(self) -> None:
        """End it."""
        self._probe.stop()
        if self._noting.running:
            self._noting.stop()

    def report(self) -> tuple[bool, Mapping[str, object]]:
        """Return whether the server is healthy, the reasons if it is not, and the degradation of a healthy one."""
        facts = self._note()
        since_s = facts.closing_since_s
        closing_s = 0.0 if since_s is None else self._now_s() - since_s
        unserving, reasons = self._health.unserving(facts.why_unserving), self._health.reasons(closing_s)
        degraded: list[str] = []
        if unserving and self._tablets is not None and self._tablets.is_serving():
            degraded = [f"{why}; tablets serve without the store" for why in unserving]
        else:
            reasons = [*unserving, *reasons]
        problem = "" if self._tablets is None else self._tablets.problem()
        degraded += filter(None, (problem, facts.grants))
        return not reasons, {"reasons": reasons, "degraded": degraded, "closing_for_s": round(closing_s, 1)}

    def _note(self) -> HealthFacts:
        facts = self._health_facts()
        self._health.note(facts.is_serving or facts.is_leaving)
        return facts
