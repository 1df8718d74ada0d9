"""The cost of the state machine per operation. The program prints figures and asserts nothing.

    python -m benchmarks.bench_tree [operations]

One process, no sockets, no log. Writes are applied in groups of 50, as a busy leader makes them.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable

from coord.tree.command import encode_batch, encode_command, encode_create_session
from coord.tree.machine import StateMachine
from coord.tree.watches import WatchTable
from coord.wire import records as r

SESSION = 7
GROUP = 50
DATA = bytes(100)


def timed(label: str, count: int, action: Callable[[], object], undo: Callable[[], object] | None = None) -> None:
    """Run `action`, which does `count` operations, five times, with `undo` after each run. Print the best time, without
    `undo`."""
    best = float("inf")
    for _ in range(5):
        gc.collect()
        begin = time.perf_counter()
        action()
        best = min(best, time.perf_counter() - begin)
        if undo is not None:
            undo()
    sys.stdout.write(f"{label:<44} {best / count * 1e6:8.2f} us\n")


def groups(owner: int, opcode: int, bodies: list[bytes]) -> list[bytes]:
    """Return `bodies` as commands of the one session, in groups."""
    commands = [encode_command(SESSION, owner, 1, opcode, body) for body in bodies]
    return [encode_batch(1_700_000_000_000, commands[at : at + GROUP]) for at in range(0, len(commands), GROUP)]


def machine_with(nodes: int) -> StateMachine:
    """Return a state machine with one session and `nodes` znodes of 100 bytes below /load."""
    machine = StateMachine()
    machine.apply_batch(
        encode_batch(
            1, [encode_command(SESSION, 0, 0, r.OP_CREATE_SESSION, encode_create_session(10_000, DATA[:16], b""))]
        )
    )
    paths = [b"/load", *[b"/load/region-%06d" % i for i in range(nodes)]]
    creates = [r.encode_create(r.CreateRequest(r.OP_CREATE, path, DATA, r.OPEN_ACL, 0)) for path in paths]
    for group in groups(1, r.OP_CREATE, creates):
        machine.apply_batch(group)
    return machine


def main() -> None:
    """Print one line per operation."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    machine = machine_with(count)
    session = machine.sessions.find(SESSION)
    assert session is not None
    watches = WatchTable()
    paths = [b"/load/region-%06d" % i for i in range(count)]

    def run(batch: list[bytes]) -> Callable[[], None]:
        def apply() -> None:
            for group in batch:
                machine.apply_batch(group)

        return apply

    def reads(opcode: int, bodies: list[bytes]) -> Callable[[], None]:
        def answer() -> None:
            read = machine.read
            for body in bodies:
                read(opcode, body, session, watches)

        return answer

    plain = [r.encode_path_watch(path, False) for path in paths]
    timed("getData, 100 bytes", count, reads(r.OP_GET_DATA, plain))
    timed("exists", count, reads(r.OP_EXISTS, plain))
    sets = groups(1, r.OP_SET_DATA, [r.encode_set_data(path, DATA, -1) for path in paths])
    timed("setData, 100 bytes", count, run(sets))
    fresh = [r.CreateRequest(r.OP_CREATE, b"/load/new-%06d" % i, DATA, r.OPEN_ACL, 0) for i in range(count)]
    create = groups(1, r.OP_CREATE, [r.encode_create(each) for each in fresh])
    remove = groups(1, r.OP_DELETE, [r.encode_path_version(each.path, -1) for each in fresh])
    timed("create, 100 bytes", count, run(create), run(remove))
    run(create)()
    timed("delete, 100 bytes", count, run(remove), run(create))
    run(remove)()
    timed("create + delete, 100 bytes", count, lambda: (run(create)(), run(remove)()))
    ops = [r.MultiOp(r.OP_SET_DATA, path, DATA, -1) for path in paths]
    multis = groups(1, r.OP_MULTI, [r.encode_multi(ops[at : at + 100]) for at in range(0, count, 100)])
    timed("setData as part of a multi of 100", count, run(multis))
    # As on a node without clients.
    machine.serve_clients(frozenset(), watches)
    timed("  unanswered: setData", count, run(sets))
    timed("  unanswered: create", count, run(create), run(remove))
    run(create)()
    timed("  unanswered: delete", count, run(remove), run(create))
    run(remove)()
    timed("  unanswered: setData in a multi", count, run(multis))
    machine.serve_clients(None, None)
    listing = [r.encode_path_watch(b"/load", False)] * 20
    timed(f"getChildren of {count}, again", 20, reads(r.OP_GET_CHILDREN, listing))

    def rearm() -> None:
        for body in armed:
            machine.read(r.OP_GET_DATA, body, session, watches)
        for path in paths:
            watches.triggered(r.EVENT_DATA_CHANGED, path)

    armed = [r.encode_path_watch(path, True) for path in paths]
    timed("getData with watch + its firing", count, rearm)
    chunks = list(machine.snapshot_chunks())
    size = len(machine.tree.nodes)
    timed("snapshot, per znode", size, lambda: list(machine.snapshot_chunks()))
    timed("restore, per znode", size, lambda: StateMachine.restore(chunks))
    node = machine.tree.nodes[paths[0]]
    timed("  of a write: Stat", 100_000, lambda: [node.stat() for _ in range(100_000)])
    timed("  of a write: digest", 100_000, lambda: [node.update_digest(paths[0]) for _ in range(100_000)])


if __name__ == "__main__":
    main()
