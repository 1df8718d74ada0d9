"""Clients that read, write, and compare and set the same rows of tablets, and the check of their histories.

Each tablet has one key for these clients. Half of the operations use a few keys, so that the clients contend for them.
Every operation is recorded with its times and its answer. After the drill each key is read once more, and
`simulation/checks/linearizable.py` checks the history of each key. A lost acknowledged write, a write that took effect
twice, or a read of an old value makes a history not linearizable.
"""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

from cli.drill.load import KEYS, LoadOperation, key_in
from cli.drill.report import InvariantCheck, check
from regions.records.model import RegionRecord
from regionserver.client import Attempt, DataError, RegionClient, RegionLocator
from simulation.checks.linearizable import Access, KeyOperation, TooHard, objection

#: Number of clients; each is a thread with connections, hints and write numbers of its own.
CLIENTS: Final = 8
#: Keys for which the clients contend. The search for an order needs a few operations of each key at the same time.
CONTENDED: Final = 8
#: Time limit of one operation: in a drill, a majority of a tablet's replicas is never away for longer.
OPERATION_TIMEOUT_S: Final = 75.0
#: Operations that are kept in memory, 100 bytes each; the clients then stop.
OPERATIONS_MAX: Final = 500_000
#: Shares of reads, writes and deletions; the rest compares and sets.
_READS: Final = 0.4
_WRITES: Final = 0.25
_DELETIONS: Final = 0.05
_CHECKED_AT_ONCE: Final = 16


class HistoryKey(NamedTuple):
    """A key of these clients."""

    table: str
    tablet: str
    key: str


class _Client:
    """One client: a thread that carries out one operation after the other."""

    def __init__(self, owner: HistoryClients, number: int, locator: RegionLocator, seed: int) -> None:
        self.name = f"client-{number}"
        self.operations: list[tuple[HistoryKey, KeyOperation]] = []
        self.timings: list[LoadOperation] = []
        self.failures: list[str] = []
        self._owner = owner
        self._rng = random.Random(seed)
        self._calls = RegionClient(locator, timeout_s=OPERATION_TIMEOUT_S, on_attempt=self._attempted)
        self._codes: list[str] = []
        #: The value of each key as this client knows it.
        self._known: dict[HistoryKey, bytes | None] = {}
        self.thread = threading.Thread(target=self._run, name=self.name, daemon=True)

    def _run(self) -> None:
        count = 0
        try:
            while not self._owner.is_stopping(self._rng.uniform(0.5, 1.5)):
                count += 1
                self._operate(self._owner.choose(self._rng), f"{self.name}:{count}".encode())
        except Exception as error:  # a bug of this program must be reported, not end a thread in silence
            self.failures.append(f"{self.name} itself failed: {type(error).__name__}: {error}")
        finally:
            self._calls.close()

    def _attempted(self, attempt: Attempt) -> None:
        self._owner.check_cluster()
        self._codes.append(attempt.code)

    def _operate(self, key: HistoryKey, value: bytes) -> None:
        """Carry out one operation and record it."""
        self._codes = []
        share = self._rng.random()
        began_ns = time.monotonic_ns()
        access, expected = Access.CAS, self._known.get(key)
        new: bytes | None = value
        if share < _READS:
            access, new = Access.READ, None
        elif share < _READS + _WRITES:
            access = Access.WRITE
        elif share < _READS + _WRITES + _DELETIONS:
            access, new = Access.WRITE, None
        outcome, text = "ok", ""
        try:
            found, succeeded = self._call(key, access, new, expected)
        except DataError as error:
            outcome, text = "unknown" if error.may_have_been_done else "failed", str(error)
            found, succeeded = new, True
        ended_ns = time.monotonic_ns()
        self._record_timing(key, access, began_ns, ended_ns, outcome, text)
        if outcome == "failed" or (outcome == "unknown" and access is Access.READ):
            return  # nothing was done, and the operation gives no information
        answered = ended_ns if outcome == "ok" else None
        operation = KeyOperation(self.name, access, began_ns, answered, found, expected, succeeded)
        self.operations.append((key, operation))
        if outcome == "ok" and (access is not Access.CAS or succeeded):
            self._known[key] = found

    def _call(
        self, key: HistoryKey, access: Access, new: bytes | None, expected: bytes | None
    ) -> tuple[bytes | None, bool]:
        """Return the value that was read or sent, and whether a compare-and-set succeeded. Raise DataError."""
        if access is Access.READ:
            return self._calls.get(key.table, key.key), True
        if access is Access.CAS:
            succeeded = self._calls.compare_and_set(key.table, key.key, expected, new)
            if not succeeded:
                self._known.pop(key, None)
            return new, succeeded
        if new is None:
            self._calls.delete(key.table, key.key)
        else:
            self._calls.put(key.table, key.key, new)
        return new, True

    def _record_timing(
        self, key: HistoryKey, access: Access, began_ns: int, ended_ns: int, outcome: str, text: str
    ) -> None:
        attempts, codes = len(self._codes), tuple(code for code in self._codes if code)
        kind = access.name.lower()
        began_s, ended_s = began_ns / 1e9, ended_ns / 1e9
        self.timings.append(LoadOperation(key.tablet, kind, began_s, ended_s, outcome, attempts, text, codes))
        if outcome != "ok":
            self.failures.append(f"{key.tablet}: {kind} took {ended_s - began_s:.1f} s and failed: {text}")


class HistoryClients:
    """The clients of one drill. `start` and `stop` are for the main thread."""

    def __init__(self, locator: RegionLocator, tables: dict[str, list[RegionRecord]], rate: float, seed: int) -> None:
        """`tables`: tablets by table, at least one. `rate`: operations of all clients per second."""
        rng = random.Random(seed)
        self._keys = [
            HistoryKey(table, one.region_id, key_in(one, KEYS)) for table, found in tables.items() for one in found
        ]
        self._contended = rng.sample(self._keys, min(CONTENDED, len(self._keys)))
        self._interval_s = CLIENTS / rate
        self._calls = RegionClient(locator, timeout_s=OPERATION_TIMEOUT_S, on_attempt=lambda _: self.check_cluster())
        self._is_abandoned = False
        self._first: dict[HistoryKey, bytes | None] = {}
        #: Operations that failed or have an unknown outcome; set by `stop`.
        self.failures: list[str] = []
        self._stopping = threading.Event()
        self._is_full = threading.Event()
        self._clients = [_Client(self, number, locator, rng.getrandbits(64)) for number in range(1, CLIENTS + 1)]

    # --- for the clients ---

    def is_stopping(self, factor: float) -> bool:
        """Wait for the pause between two operations, times `factor`; return True once the client must end."""
        if sum(len(one.operations) for one in self._clients) >= OPERATIONS_MAX:
            self._is_full.set()
        return self._stopping.wait(self._interval_s * factor) or self._is_full.is_set()

    def choose(self, rng: random.Random) -> HistoryKey:
        """Return the key of the next operation."""
        return rng.choice(self._contended if rng.random() < 0.5 else self._keys)

    def check_cluster(self) -> None:
        """Raise DataError, which ends the running call, if the cluster has gone."""
        if self._is_abandoned:
            raise DataError("the cluster has gone", may_have_been_done=True)

    # --- for the drill ---

    def abandon(self) -> None:
        """Let all calls end at their next attempt, and let `stop` read nothing: the cluster has gone. Thread-safe."""
        self._is_abandoned = True
        self._stopping.set()

    @property
    def tablets(self) -> int:
        """Return the number of tablets."""
        return len(self._keys)

    def start(self) -> None:
        """Read the first value of every key, and begin. Raise DataError."""
        with ThreadPoolExecutor(_CHECKED_AT_ONCE, thread_name_prefix="history") as pool:
            found = pool.map(lambda key: self._calls.get(key.table, key.key), self._keys)
            self._first = dict(zip(self._keys, found, strict=True))
        for one in self._clients:
            one.thread.start()

    def answered_since(self, since_s: float) -> int:
        """Return the lowest number of operations of one client that began and were answered after `since_s`.

        Times are of `time.monotonic`.
        """
        return min(
            sum(timing.began_s >= since_s and timing.outcome == "ok" for timing in list(one.timings))
            for one in self._clients
        )

    def stop(self) -> InvariantCheck:
        """End the clients, read every key again, check the histories, and delete the rows."""
        self._stopping.set()
        for one in self._clients:
            one.thread.join()
        histories: dict[HistoryKey, list[KeyOperation]] = {key: [] for key in self._keys}
        for one in self._clients:
            for key, operation in one.operations:
                histories[key].append(operation)
        with ThreadPoolExecutor(_CHECKED_AT_ONCE, thread_name_prefix="history") as pool:
            wrong = [text for text in pool.map(lambda key: self._finish(key, histories[key]), self._keys) if text]
        self._calls.close()
        count = sum(len(found) for found in histories.values())
        detail = f"{count} reads, writes and compare-and-sets of {len(self._keys)} keys by {CLIENTS} clients"
        if self._is_full.is_set():
            detail += f"; stopped after {OPERATIONS_MAX}"
        self.failures = [text for one in self._clients for text in one.failures]
        return check("histories of rows are linearizable", wrong, detail)

    def timings(self) -> list[LoadOperation]:
        """Return all operations, with times of `time.monotonic`. Call after `stop`."""
        return [timing for one in self._clients for timing in one.timings]

    def _finish(self, key: HistoryKey, history: list[KeyOperation]) -> str:
        """Read a key a last time and delete it. Return the fault of its history, or ""."""
        if self._is_abandoned:
            return f"{key.tablet} {key.key!r}: could not be read after the drill: the cluster has gone"
        began_ns = time.monotonic_ns()
        try:
            value = self._calls.get(key.table, key.key)
            history.append(KeyOperation("last read", Access.READ, began_ns, time.monotonic_ns(), value))
            self._calls.delete(key.table, key.key)
        except DataError as error:
            return f"{key.tablet} {key.key!r}: could not be read after the drill: {error}"
        try:
            wrong = objection(history, self._first[key])
        except TooHard as error:
            wrong = f"not decided: {error}"
        return f"{key.tablet} {key.key!r}: {wrong}" if wrong else ""
