"""`rk health` beside clients during a drill: never green while a client is refused, never red two seconds after the
last one was served, and not red before the drill and after it.

The order of events counts, by one clock: every request of a client and every round of the command has its begin and its
end. `greens_while_refused` and `reds_while_served` are pure.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final, NamedTuple

from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError

from cli.common.access import open_store
from cli.common.connect import Cluster
from cli.common.errors import CliError
from cli.drill.traffic import has_columns
from coord.client.access import StoreAccess
from regions.records.znodes import Layout
from regionserver.client import DataError, RegionLocator, connect
from tests.e2e.clusters import LocalUp, run_rk
from tests.support.helpers import eventually

#: Name of what the clients read besides the regions.
STORE: Final = "store"
GREEN, RED = "healthy", "unavailable"
#: A request that is not answered for this long is refused.
REFUSED_S: Final = 1.0
#: A request that takes longer is disturbed: red may be right, and so may green.
SLOW_S: Final = 0.5
#: Time after which a verdict may no longer be red, besides the longest round of the command on this machine.
AFTER_S: Final = 2.0
_ROOT: Final = "/regionkeeper"
_PAUSE_S: Final = 0.3
_CLIENTS: Final = 4
#: Regions of each table that are used.
_REGIONS: Final = 8
#: The value that the clients put, and its key: after the first key of a region, in a row of their own.
_VALUE: Final = b"beside a drill"
_SUFFIX: Final = "\x01beside"


class Request(NamedTuple):
    """One request of a client for one region, or for the store."""

    what: str
    began_s: float
    ended_s: float
    is_served: bool

    @property
    def is_disturbed(self) -> bool:
        """Return True for a request that was refused or slow."""
        return not self.is_served or self.ended_s - self.began_s > SLOW_S


class Round(NamedTuple):
    """One run of `rk health`."""

    began_s: float
    ended_s: float
    verdict: str
    reasons: tuple[str, ...] = ()


def greens_while_refused(requests: Sequence[Request], rounds: Sequence[Round]) -> list[str]:
    """Return the green rounds that lie between two refusals of one region without an answer between them."""
    found = []
    for what, sent in _by_what(requests):
        for is_served, group in itertools.groupby(sent, key=lambda one: one.is_served):
            some = list(group)
            if not is_served:
                begin_s, end_s = some[0].ended_s, some[-1].began_s
                refused = f"{what} refused from {begin_s:.2f} to {end_s:.2f} s"
                found += [
                    f"green from {one.began_s:.2f} to {one.ended_s:.2f} s: {refused}"
                    for one in rounds
                    if one.verdict == GREEN and begin_s < one.began_s and one.ended_s < end_s
                ]
    return found


def reds_while_served(requests: Sequence[Request], rounds: Sequence[Round]) -> list[str]:
    """Return the times of more than two seconds in which the command was red and every client was served."""
    after_s = AFTER_S + max((one.ended_s - one.began_s for one in rounds), default=0.0)
    disturbed: list[tuple[float, float]] = []
    for _, sent in _by_what(requests):
        known_s = sent[0].began_s
        for is_disturbed, group in itertools.groupby(sent, key=lambda one: one.is_disturbed):
            some = list(group)
            if is_disturbed:
                following = [one.ended_s for one in sent if one.began_s >= some[-1].ended_s][:1]
                disturbed.append((known_s, (following or [some[-1].ended_s])[0] + after_s))
            known_s = some[-1].began_s

    def is_wrong(one: Round) -> bool:
        return one.verdict == RED and not any(begin <= one.ended_s and one.began_s <= end for begin, end in disturbed)

    found = []
    for wrong, group in itertools.groupby(rounds, key=is_wrong):
        reds = list(group)
        # An election of the store that is shorter than the pause between two requests is seen by the command alone.
        if wrong and reds[-1].ended_s - reds[0].began_s > AFTER_S:
            reasons = "; ".join(reds[-1].reasons)
            found.append(f"red from {reds[0].began_s:.2f} to {reds[-1].ended_s:.2f} s while all were served: {reasons}")
    return found


def _by_what(requests: Sequence[Request]) -> Iterator[tuple[str, list[Request]]]:
    """Yield the requests of each region in their order."""
    for what, group in itertools.groupby(sorted(requests), key=lambda one: one.what):
        yield what, list(group)


class _Beside:
    """Clients and rounds of the command, each in threads of its own."""

    def __init__(self, up: LocalUp) -> None:
        self._up = up
        self._hosts = str(json.loads((up.data_dir / "cluster.json").read_text())["store"])
        self._access = StoreAccess(auth=up.store_auth())
        self._ends = threading.Event()
        self._began_s = time.monotonic()
        self.requests: list[Request] = []
        self.rounds: list[Round] = []

    def _now_s(self) -> float:
        return time.monotonic() - self._began_s

    def keys(self) -> list[tuple[str, str]]:
        """Return (table, key) in some regions of each table."""
        found = []
        with open_store(self._hosts, access=self._access) as store:
            locator = RegionLocator(store, Layout(_ROOT))
            for table in Cluster(store, self._hosts, _ROOT).tables():
                if has_columns(table):
                    continue
                regions = locator.regions(table.name) or []
                some = regions[:: max(1, len(regions) // _REGIONS)]
                found += [(table.name, (one.start_key or "!") + _SUFFIX) for one in some]
        return found

    def ask_health(self) -> None:
        """Run the command again and again."""
        while not self._ends.is_set():
            began_s = self._now_s()
            report = json.loads(run_rk("health", "--json", "--data-dir", str(self._up.data_dir)).stdout)
            self.rounds.append(Round(began_s, self._now_s(), report["verdict"], tuple(report["reasons"])))
            self._ends.wait(_PAUSE_S)

    def use(self, keys: Sequence[tuple[str, str]]) -> None:
        """Put and get one row of each region again and again. After a refusal the client connects anew, like a new
        process."""
        turn = itertools.cycle(keys)
        while not self._ends.is_set():
            began_s, (table, key) = self._now_s(), next(turn)
            try:
                with connect(
                    self._hosts, connect_timeout_s=REFUSED_S, timeout_s=REFUSED_S, store_auth=self._up.store_auth()
                ) as client:
                    while not self._ends.is_set():
                        client.put(table, key, _VALUE)
                        assert client.get(table, key) == _VALUE
                        self.requests.append(Request(f"{table}:{key}", began_s, self._now_s(), True))
                        self._ends.wait(_PAUSE_S / len(keys))
                        began_s, (table, key) = self._now_s(), next(turn)
            except DataError:
                self.requests.append(Request(f"{table}:{key}", began_s, self._now_s(), False))

    def read_store(self) -> None:
        """Open a session with the store and read a znode, again and again."""
        while not self._ends.is_set():
            began_s = self._now_s()
            try:
                with open_store(self._hosts, REFUSED_S, self._access) as client:
                    client.get_async(Layout(_ROOT).epoch).get(timeout=REFUSED_S)
                is_served = True
            except (CliError, KazooException, KazooTimeoutError):
                is_served = False
            self.requests.append(Request(STORE, began_s, self._now_s(), is_served))
            self._ends.wait(_PAUSE_S)

    def is_not_red(self) -> bool:
        """Return True if the latest round was not red."""
        return bool(self.rounds) and self.rounds[-1].verdict != RED

    def end(self) -> None:
        """End all threads after their present request."""
        self._ends.set()


@contextmanager
def health_beside_clients(up: LocalUp) -> Iterator[None]:
    """Run clients and `rk health` while the block breaks the cluster; check the verdicts at its end."""
    beside = _Beside(up)
    keys = beside.keys()
    with ThreadPoolExecutor(_CLIENTS + 2) as pool:
        work = [pool.submit(beside.ask_health), pool.submit(beside.read_store)]
        work += [pool.submit(beside.use, keys[number::_CLIENTS]) for number in range(_CLIENTS)]
        try:
            eventually(beside.is_not_red, what="rk health is not red before the drill")
            yield
            # Requests are slow on a busy machine, and may excuse every red round of the drill: here nothing does.
            begun = len(beside.rounds)
            eventually(lambda: len(beside.rounds) > begun and beside.is_not_red(), what="rk health is not red any more")
        finally:
            beside.end()
        for one in work:
            one.result()
    assert beside.rounds
    assert {one.what for one in beside.requests} == {STORE, *(f"{table}:{key}" for table, key in keys)}
    wrong = greens_while_refused(beside.requests, beside.rounds) + reds_while_served(beside.requests, beside.rounds)
    assert not wrong, "\n".join(wrong)
