"""python -m tests.torture --minutes 10: rounds of fresh seeds; a failed round leaves its directory behind."""

from __future__ import annotations

import argparse
import logging
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.torture.plan import WEIGHTS, make_plan
from tests.torture.rounds import Round


def main() -> int:
    """Run the rounds. Return 0 if all of them succeeded."""
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10, help="begin rounds for so long (10)")
    parser.add_argument("--seed", type=int, help="one round of this seed")
    parser.add_argument("--from", dest="first", type=int, help="rounds of this seed and those that follow")
    parser.add_argument("--length", type=float, default=20, help="seconds of faults per round (20)")
    parser.add_argument("--only", default="", help=f"no other faults than these: {','.join(WEIGHTS)}")
    parser.add_argument("--folder", type=Path, help="where rounds leave what failed; else a new temporary one")
    parser.add_argument("--keep", action="store_true", help="leave the directories of good rounds, too")
    given = parser.parse_args()
    # Every signal that ends this process must also end its nodes.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # kazoo logs every lost connection.
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)
    only = tuple(name for name in given.only.split(",") if name)
    if unknown := [name for name in only if name not in WEIGHTS]:
        parser.error(f"no such fault: {', '.join(unknown)}")
    folder = given.folder or Path(tempfile.mkdtemp(prefix="rk-torture-"))
    folder.mkdir(parents=True, exist_ok=True)
    can_fill = can_mount(folder)
    if not can_fill:
        say("may not mount small file systems: no disk gets full")
    seed = given.seed if given.seed is not None else given.first
    if seed is None:
        seed = random.SystemRandom().randrange(1 << 30)
    deadline = time.monotonic() + 60 * given.minutes
    failed: list[int] = []
    rounds = faults = requests = 0
    worst_s = recovery_s = 0.0
    while True:
        plan = make_plan(seed, length_s=given.length, only=only, can_fill=can_fill)
        say(plan)
        said: list[str] = []
        shutil.rmtree(folder / f"seed{seed}", ignore_errors=True)
        found = Round(plan, folder / f"seed{seed}", said.append)
        try:
            found.run()
        except KeyboardInterrupt:
            found.close()
            shutil.rmtree(found.folder, ignore_errors=True)
            say("  broken off")
            break
        rounds += 1
        faults += sum(found.counts.values())
        requests += found.done
        worst_s = max(worst_s, found.outage_s)
        recovery_s = max(recovery_s, found.recovery_s)
        say(
            f"  {found.done} requests, {found.unknown} unknown; leader killed: {found.outage_s:.2f} s without a write;"
            f" mended: well after {found.recovery_s:.1f} s; {found.counts}"
        )
        if found.violations:
            failed.append(seed)
            if plan.has_disks:
                for node in range(1, plan.nodes + 1):
                    source = found.folder / f"disk{node}" / "data"
                    if source.exists():
                        shutil.copytree(source, found.folder / f"data{node}")
            said += [f"  VIOLATED: {violation}" for violation in found.violations]
            (found.folder / "story").write_text("\n".join([str(plan), *said, ""]))
            say("\n".join(said[-40:]))
            say(f"  kept in {found.folder}; again: python -m tests.torture --seed {seed}")
        found.close()
        if not found.violations and not given.keep:
            shutil.rmtree(found.folder, ignore_errors=True)
        seed += 1
        if given.seed is not None or time.monotonic() > deadline:
            break
    say(
        f"{rounds} rounds, {faults} faults, {requests} requests; without a leader at most {worst_s:.2f} s, well again"
        f" after {recovery_s:.1f} s; failed: {failed or 'none'}"
    )
    return 1 if failed else 0


def say(line: str) -> None:
    """Print a line of progress."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def can_mount(folder: Path) -> bool:
    """Return True if this user may mount small file systems."""
    place = folder / "probe"
    place.mkdir(exist_ok=True)
    try:
        command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)]
        subprocess.run(command, check=True, capture_output=True)
        subprocess.run(["umount", str(place)], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return False
    finally:
        place.rmdir()
    return True


if __name__ == "__main__":
    sys.exit(main())
