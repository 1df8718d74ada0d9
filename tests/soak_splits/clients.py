"""Clients that know the expected content of their rows. Each writes keys of its own, which no other client changes."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable
from typing import Final, NamedTuple

from regionserver.client import DataError, RegionClient
from tests.support.soaks import Worker

TABLE: Final = "rows"
#: Number of keys of all clients together.
KEYS: Final = 8_000
#: Longest pause between two calls of a client.
PAUSE_S: Final = 0.02
#: Calls that take longer are kept, with their key.
SLOW_S: Final = 0.05
#: Time limit of a call: a call that fails within it is a fault.
CALL_S: Final = 120.0

Value = bytes | None


def key_of(number: int) -> str:
    """Return a key. Keys sort as their numbers do."""
    return f"{number:05}"


class SlowCall(NamedTuple):
    """A call that took long."""

    began_s: float
    ended_s: float
    key: str


class Expected:
    """Possible content of one client's rows: after an acknowledged write the new value; after a failed write the old or
    the new one."""

    def __init__(self) -> None:
        self._values: dict[str, set[Value]] = {}

    def acknowledged(self, key: str, value: Value) -> None:
        """Note that the write was acknowledged."""
        self._values[key] = {value}

    def unknown(self, key: str, value: Value) -> None:
        """Note that the write may or may not have been done."""
        self._values.setdefault(key, {None}).add(value)

    def objection(self, key: str, found: Value) -> str:
        """Return what is wrong with a row that was read, "" if nothing."""
        allowed = self._values.get(key, {None})
        if found in allowed:
            return ""
        return f"row {key} is {found!r:.40}, and not {' or '.join(f'{one!r:.40}' for one in allowed)}"

    def keys(self) -> set[str]:
        """Return the keys that were written."""
        return set(self._values)


class Client(Worker):
    """A thread with a connection of its own."""

    def __init__(self, number: int, clients: int, client: RegionClient, seed: int) -> None:
        super().__init__()
        self._client = client
        self._random = random.Random(f"{seed}-{number}")
        self._mine = range(number, KEYS, clients)
        self.expected = Expected()
        self.slow: list[SlowCall] = []

    def _run(self) -> None:
        number = 0
        while not self._is_over.wait(self._random.uniform(0, PAUSE_S)):
            number += 1
            key = key_of(self._random.choice(self._mine))
            began_s = time.monotonic()
            try:
                self._call(key, number)
            except DataError as error:
                self.faults.append(f"row {key} was not read within {CALL_S:g} s: {error}")
            ended_s = time.monotonic()
            if ended_s - began_s > SLOW_S:
                self.slow.append(SlowCall(began_s, ended_s, key))

    def _call(self, key: str, number: int) -> None:
        kind = self._random.random()
        if kind < 0.4:
            found = self._client.get(TABLE, key, timeout_s=CALL_S)
            if wrong := self.expected.objection(key, found):
                self.faults.append(f"while it was served, {wrong}")
            self.counts["gets"] += 1
            return
        value = None if kind < 0.5 else f"{key}-{number}-".encode() + b"." * self._random.randrange(400)
        try:
            if value is None:
                self._client.delete(TABLE, key, timeout_s=CALL_S)
            else:
                self._client.put(TABLE, key, value, timeout_s=CALL_S)
        except DataError as error:
            if error.may_have_been_done:
                self.expected.unknown(key, value)
            self.faults.append(f"row {key} was not written within {CALL_S:g} s: {error}")
            return
        self.expected.acknowledged(key, value)
        self.counts["writes"] += 1


def lost(clients: Iterable[Client], rows: dict[str, bytes]) -> list[str]:
    """Compare the rows of the table with what was acknowledged; return what is wrong."""
    found: list[str] = []
    known: set[str] = set()
    for one in clients:
        mine = one.expected.keys()
        known |= mine
        found += (one.expected.objection(key, rows.get(key)) for key in sorted(mine))
    found += [f"row {key} was never written" for key in rows.keys() - known]
    return [text for text in found if text]
