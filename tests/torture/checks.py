"""Invariants of a round, checked against all answers that its clients received."""

from __future__ import annotations

from collections.abc import Iterable

from kazoo.client import KazooClient

from tests.torture.clients import Deserter, Owner, Pairs, Register, Sequencer, Worker

Operation = tuple[float, float, int, bytes, bool]


def linearizable(history: Iterable[Operation], maybe: dict[bytes, float], refused: Iterable[bytes]) -> list[str]:
    """Check that some order explains the operations on one znode, each at a moment between request and answer.

    Every write makes a version of its own, one higher than the last, so their order is known and need not be searched:
    each version has one value; what began after another had ended sees at least its version, and makes a higher one.
    """
    found: list[str] = []
    values: dict[int, bytes] = {}
    operations = sorted(history)
    for _, _, version, value, _ in operations:
        if values.setdefault(version, value) != value:
            found.append(f"version {version} is {values[version]!r} and {value!r}")
    versions: dict[bytes, int] = {}
    for version, value in values.items():
        if value and versions.setdefault(value, version) != version:
            found.append(f"{value!r} was written twice, as version {versions[value]} and {version}")
    for value in refused:
        if value in versions:
            found.append(f"{value!r} was refused and is version {versions[value]}")
    for value, began in maybe.items():
        version = versions.get(value, -1)
        early = [op for op in operations if op[2] == version and op[1] < began]
        if early:
            found.append(f"{value!r} was read before it was written")
    # Highest version in any answer so far, by the time of the answer.
    told = sorted((ended, version) for _, ended, version, _, _ in operations)
    position = highest = 0
    for began, _, version, value, wrote in operations:
        while position < len(told) and told[position][0] < began:
            highest = max(highest, told[position][1])
            position += 1
        if version < highest or (wrote and version == highest and highest > 0):
            what = "written" if wrote else "read"
            found.append(f"version {version} ({value!r}) was {what} after version {highest} had been told")
    return found


def check_register(workers: list[Worker], last: tuple[bytes, int]) -> list[str]:
    """Check the register. `last`: the value and version at the end."""
    registers = [worker for worker in workers if isinstance(worker, Register)]
    history = [operation for worker in registers for operation in worker.history]
    end = max((operation[1] for operation in history), default=0.0) + 1
    history.append((end, end, last[1], last[0], False))
    maybe = {value: began for worker in registers for value, began in worker.maybe.items()}
    return linearizable(history, maybe, [value for worker in registers for value in worker.refused])


def check_sequences(workers: list[Worker], found: dict[str, bytes]) -> list[str]:
    """Check the sequential znodes. `found`: the znodes below /seq at the end."""
    violations: list[str] = []
    by_data: dict[bytes, list[str]] = {}
    for name, data in found.items():
        by_data.setdefault(data, []).append(name)
    asked: set[bytes] = set()
    for worker in workers:
        if isinstance(worker, Sequencer):
            asked |= worker.asked.keys()
            for data, path in worker.asked.items():
                names = by_data.get(data, [])
                if len(names) > 1:
                    violations.append(f"{data[:30]!r} was created {len(names)} times: {names}")
                if path is not None and names != [path.rpartition("/")[2]]:
                    violations.append(f"{data[:30]!r} was acknowledged as {path}, found as {names}")
    violations += [f"{name} holds what nobody asked for" for name, data in found.items() if data not in asked]
    # A session's requests are performed in its order.
    latest: dict[tuple[bytes, bytes], int] = {}
    for name in sorted(found):
        who, owner, count, *_ = found[name].split(b" ")
        before = latest.get((who, owner), 0)
        if int(count) < before:
            violations.append(f"{name}: request {int(count)} of session {int(owner):#x} comes behind {before}")
        latest[who, owner] = int(count)
    return violations


def check_pairs(workers: list[Worker], found: set[str]) -> list[str]:
    """Check the transactions. `found`: the names below /pair at the end."""
    violations = []
    for worker in workers:
        if isinstance(worker, Pairs):
            for name, is_done in worker.asked.items():
                halves = (f"a-{name}" in found) + (f"b-{name}" in found)
                if halves == 1 or (is_done is not None and halves != 2 * is_done):
                    violations.append(f"transaction {name}: performed {is_done}, {halves} of 2 znodes are there")
    return violations


def check_ephemerals(workers: list[Worker], found: set[str]) -> list[str]:
    """Check the ephemerals. `found`: the names below /eph after the timeouts of all abandoned sessions."""
    gone = {path for worker in workers if isinstance(worker, Owner) for path in worker.closed}
    gone |= {path for worker in workers if isinstance(worker, Deserter) for path in worker.left}
    return [f"ephemeral {path} outlives its session" for path in sorted(gone) if path.rpartition("/")[2] in found]


def read_all(client: KazooClient, folder: str) -> dict[str, bytes]:
    """Return names and data of all children."""
    names = client.get_children(folder)
    waiting = [(name, client.get_async(f"{folder}/{name}")) for name in names]
    return {name: asked.get(60)[0] for name, asked in waiting}


def longest_gap(workers: list[Worker], since: float) -> float:
    """Return the seconds after `since` until a write that was sent after it was acknowledged."""
    later = [ended for worker in workers for began, ended in worker.writes if began > since]
    return min(later, default=since) - since
