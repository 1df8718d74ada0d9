"""Clients that create, alter, rename and delete tables during a drill, each on its own thread, and their results.

A client sends one operation after the other, as any tool or service would (`master/client.py`). It retries under one
request id, with any master that answers, until there is a definite result or the deadline has passed. The operations
come from `simulation/ddl_stress`, and every result goes into its log.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from coord.rpc.wire import RpcError
from master.client import MasterClient, NoLeader
from regions import messages
from simulation.ddl_stress.model import OperationLog
from simulation.ddl_stress.operations import (
    RETRIED_CODES,
    Operation,
    OperationGenerator,
    OperationOutcome,
    RandomSource,
)

#: Time limit of an operation with all its attempts.
DEADLINE_S: Final = 60.0
#: Interval at which a client notices that the drill is aborted.
PART_S: Final = 5.0
#: Time limit within one attempt for requests that wait until all regions are open, altered or closed.
WAIT_MS: Final = 3_000


class Allowance:
    """Number of operations that may begin: the drill allows more with each election."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._left = 0
        self._is_over = False

    def grant(self, count: int) -> None:
        """Allow `count` more operations."""
        with self._changed:
            self._left += count
            self._changed.notify_all()

    def end(self) -> None:
        """Allow no more operations, and wake the waiting clients."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def take(self) -> bool:
        """Take one allowed operation, waiting for one; return False after the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._left > 0 or self._is_over)
            if self._is_over:
                return False
            self._left -= 1
            return True

    @property
    def left(self) -> int:
        """Return the number of operations that are allowed and not begun."""
        return self._left


class DdlClients:
    """All clients of one drill. `on_result` is called after each result, on the client's thread."""

    def __init__(
        self, count: int, masters: Sequence[str], dice: RandomSource, prefix: str, on_result: Callable[[], object]
    ) -> None:
        self.allowance = Allowance()
        self.count = count
        self.log = OperationLog()
        self._masters = list(masters)
        self._workload = OperationGenerator(dice, prefix, wait_ms=WAIT_MS)
        self._on_result = on_result
        #: Guards the workload and the log.
        self._lock = threading.Lock()
        self._busy = 0
        self._is_given_up = False
        #: Number of attempts of each operation, by its number.
        self.attempts: dict[int, int] = {}
        #: Exceptions that ended a client: bugs of the drill.
        self.faults: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._run, args=(number,), name=f"ddl-{number}", daemon=True)
            for number in range(count)
        ]

    def start(self) -> None:
        """Start the clients; each waits for allowed operations."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Let the clients finish their present operations, and wait for them."""
        self.allowance.end()
        for thread in self._threads:
            thread.join(DEADLINE_S + PART_S)

    def give_up(self) -> None:
        """Abort the drill: the clients stop after their present attempts."""
        self._is_given_up = True
        self.allowance.end()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(PART_S + 1.0)

    @property
    def done(self) -> int:
        """Return the number of finished operations."""
        return len(self.log.entries) - self._busy

    def has_done(self, count: int) -> bool:
        """Return True if `count` operations have finished."""
        return self.done >= count

    def is_idle(self) -> bool:
        """Return True if every allowed operation has finished."""
        return not self._busy and not self.allowance.left

    def _run(self, client: int) -> None:
        masters = MasterClient(self._masters)
        try:
            while self.allowance.take():
                with self._lock:
                    operation = self._workload.next(client)
                    self.log.start(operation, time.monotonic())
                    self._busy += 1
                before = masters.sent
                outcome = self._ask(masters, operation)
                with self._lock:
                    self.attempts[operation.number] = masters.sent - before
                    self.log.finish(operation, outcome, time.monotonic())
                    self._workload.finished(operation, outcome)
                    self._busy -= 1
                self._on_result()
        except BaseException as error:
            self.faults.append(error)
            raise

    def _ask(self, masters: MasterClient, operation: Operation) -> OperationOutcome:
        """Send the operation until there is a definite result."""
        deadline_s = time.monotonic() + DEADLINE_S
        error = ""
        while (left_s := deadline_s - time.monotonic()) > 0 and not self._is_given_up:
            try:
                answer = masters.ask(operation.request, messages.Tables, min(left_s, PART_S))
            except NoLeader as nobody:
                error = str(nobody)
            except RpcError as refused:
                if refused.code not in RETRIED_CODES:
                    return OperationOutcome(code=refused.code, error=refused.message)
                error = str(refused)
            else:
                return OperationOutcome(answer.tables[0].table)
        return OperationOutcome(error=error)


__all__ = ["DEADLINE_S", "DdlClients"]
