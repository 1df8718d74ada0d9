"""One round: start, work, inject faults, end them, and check all invariants."""

from __future__ import annotations

import re
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError

from tests.support.helpers import rk
from tests.torture import checks
from tests.torture.clients import (
    FOLDERS,
    REGISTER,
    UNKNOWN,
    Deserter,
    Owner,
    Pairs,
    Register,
    Sequencer,
    Watcher,
    Worker,
    session,
)
from tests.torture.ensemble import Ensemble
from tests.torture.plan import FORGETFUL, Plan

#: Time limit for recovery after the last fault has ended.
RECOVERY_S: Final = 90.0
#: Text that no node may ever print.
FORBIDDEN: Final = re.compile(r"Traceback|AssertionError|Unhandled|InvalidTransition|StateDiverged|fault (at|while)")
#: Text that a node may print only after damage.
OF_DAMAGE: Final = re.compile(r"set aside|damaged|is corrupt")

Say = Callable[[str], None]


class Round:
    """The result of one round."""

    def __init__(self, plan: Plan, folder: Path, say: Say) -> None:
        self.plan = plan
        self.folder = folder
        self.violations: list[str] = []
        self.done = self.unknown = 0
        self.outage_s = 0.0
        self.recovery_s = 0.0
        self.counts: dict[str, int] = {}
        self._say = say
        self._ensemble = Ensemble(plan, folder)
        self._workers: list[Worker] = []

    def run(self) -> None:
        """Run the whole round. `violations` is empty on success."""
        ensemble = self._ensemble
        try:
            for node in ensemble.ids:
                ensemble.start(node)
            if not self._until_well(RECOVERY_S):
                self.violations.append("a new ensemble does not come up")
                return
            self._prepare()
            self._work()
            self._judge()
            self._end()
        finally:
            ensemble.close()
            self.violations += ensemble.violations
            self.counts = ensemble.counts

    def close(self) -> None:
        """Unmount the disks."""
        self._ensemble.unmount()

    # --- the parts ----------------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        with session(self._ensemble.hosts, 4) as client:
            for folder in FOLDERS:
                client.create(folder)
            for number in range(3):
                client.create(f"/watch/{number}")
            client.create(REGISTER)

    def _work(self) -> None:
        """Run clients and faults."""
        ensemble, plan = self._ensemble, self.plan
        timeout_s = 20 * plan.tick_ms / 1000
        kinds: list[type[Worker]] = [Register] * 3 + [Sequencer] * 2 + [Pairs, Owner, Deserter, Watcher, Watcher]
        self._workers = [kind(ensemble.hosts, plan.seed * 100 + i, timeout_s) for i, kind in enumerate(kinds)]
        for worker in self._workers:
            worker.start()
        began = time.monotonic()
        threads: list[threading.Thread] = []
        for fault in plan.faults:
            if fault.name in FORGETFUL:
                # While durable data is missing, no other fault may happen.
                for thread in threads:
                    thread.join()
            if time.monotonic() > began + fault.at_s + 2:
                # The last fault took long. Skip the faults that were due meanwhile: they would all happen at once.
                continue
            if self._wait_until(began + fault.at_s):
                self._say(
                    f"  {time.monotonic() - began:5.1f} s {fault.name} {fault.node or ''} for {fault.for_s:.2f} s"
                )
                thread = threading.Thread(target=ensemble.happen, args=(fault,), daemon=True)
                thread.start()
                threads.append(thread)
                if fault.name in FORGETFUL:
                    thread.join()
            ensemble.look()
        self._wait_until(began + plan.length_s)
        for thread in threads:
            thread.join(90)
        ensemble.mend()
        mended = time.monotonic()
        if not self._until_well(RECOVERY_S):
            self.violations.append(f"not everything works again {RECOVERY_S:.0f} s after the last fault")
        self._each_serves()
        self.recovery_s = time.monotonic() - mended
        for worker in self._workers:
            worker.tell()
        for worker in self._workers:
            worker.join(90)
            if worker.is_alive():
                self.violations.append(f"{worker.name} hangs")
            self.violations += worker.violations
            self.done += worker.done
            self.unknown += worker.unknown
        self.outage_s = max((checks.longest_gap(self._workers, at) for at in ensemble.lonely_kills(1.0)), default=0.0)

    def _judge(self) -> None:
        """Read the final state, and compare it with all answers."""
        with session(self._ensemble.hosts, 4) as client:
            client.sync("/")
            value, stat = client.get(REGISTER)
            self.violations += checks.check_register(self._workers, (value, stat.version))
            self.violations += checks.check_sequences(self._workers, checks.read_all(client, "/seq"))
            self.violations += checks.check_pairs(self._workers, set(client.get_children("/pair")))
            # An abandoned session ends some ticks after its timeout.
            deadline = time.monotonic() + 3 * 20 * self.plan.tick_ms / 1000 + 2
            while self._outliving(client) and time.monotonic() < deadline:
                time.sleep(0.1)
            self.violations += self._outliving(client)
        self._agree()

    def _outliving(self, client: KazooClient) -> list[str]:
        return checks.check_ephemerals(self._workers, set(client.get_children("/eph")))

    def _agree(self) -> None:
        """Check that all replicas hold the same state."""
        deadline = time.monotonic() + RECOVERY_S
        states: set[tuple[int, str]] = set()
        while time.monotonic() < deadline:
            found = self._ensemble.statuses()
            states = {(state["zxid"], state["digest"]) for state in found.values()}
            if len(found) == len(self._ensemble.ids) and len(states) == 1:
                return
            time.sleep(0.1)
        self.violations.append(f"the nodes do not come to hold the same: {states}")

    def _end(self) -> None:
        """Stop all processes cleanly and check what they leave."""
        ensemble = self._ensemble
        ensemble.look()
        threads = [threading.Thread(target=ensemble.stop, args=(node,)) for node in ensemble.ids]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self._verify()
        for node in ensemble.ids:
            text = ensemble.log(node).read_text(errors="replace")
            self.violations += [f"node {node} printed: {line}" for line in _lines(text, FORBIDDEN)]
            if node not in ensemble.damaged:
                self.violations += [f"undamaged node {node} printed: {line}" for line in _lines(text, OF_DAMAGE)]
                if (ensemble.data(node) / "damaged").exists():
                    self.violations.append(f"undamaged node {node} has set something aside")

    def _verify(self) -> None:
        """Check directories and traces with the store's own tools."""
        ensemble = self._ensemble
        asked = [("verify", *(str(ensemble.data(node)) for node in ensemble.ids))]
        if "cut-log" not in ensemble.counts:
            # A log whose end was cut off does not show it; the trace does.
            asked.append(("check-trace", *(str(ensemble.folder / f"trace{node}.ndjson") for node in ensemble.ids)))
        running = [
            subprocess.Popen(rk("coord", *words), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            for words in asked
        ]
        for words, process in zip(asked, running, strict=True):
            text, _ = process.communicate(timeout=300)
            if process.returncode:
                self.violations.append(f"rk coord {words[0]}: {text[-2000:]}")

    # --- waiting ------------------------------------------------------------------------------------------------------

    def _wait_until(self, moment: float) -> bool:
        """Wait until that moment. Return False after a violation: further faults would only hide it."""
        while (left := moment - time.monotonic()) > 0:
            time.sleep(min(left, 0.2))
            if self._ensemble.violations or any(worker.violations for worker in self._workers):
                return False
        return True

    def _until_well(self, timeout_s: float) -> bool:
        """Wait until all nodes follow one leader and none has to catch up."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            self._ensemble.look()
            states = self._ensemble.statuses()
            leaders = {state["leader"] for state in states.values()}
            is_whole = len(states) == len(self._ensemble.ids) and len(leaders) == 1 and 0 not in leaders
            if is_whole and not any(state["joining"] or state["disk_full"] for state in states.values()):
                return True
            time.sleep(0.05)
        return False

    def _each_serves(self) -> None:
        """Check that every node opens a session and accepts a write."""
        for node, host in zip(self._ensemble.ids, self._ensemble.hosts, strict=True):
            error: Exception | None = None
            deadline = time.monotonic() + RECOVERY_S
            while time.monotonic() < deadline:
                try:
                    with session([host], 4, wait_s=30) as client:
                        client.set("/watch/0", b"served")
                        client.sync("/watch/0")
                    error = None
                    break
                except (*UNKNOWN, KazooException, KazooTimeoutError) as failure:
                    error = failure
            if error is not None:
                self.violations.append(f"node {node} serves nobody {RECOVERY_S:.0f} s after the last fault: {error!r}")


def _lines(text: str, pattern: re.Pattern[str]) -> list[str]:
    """Return the first matching lines."""
    return [line[:300] for line in text.splitlines() if pattern.search(line)][:3]
