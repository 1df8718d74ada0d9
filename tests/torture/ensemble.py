"""The nodes of one round as processes, and the faults that hit them."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any, Final

from tests.support.helpers import free_ports, rk
from tests.torture.links import Door, Links
from tests.torture.plan import FORGETFUL, Fault, Plan

AUTH: Final = "super:secret"
DIGEST: Final = "super:" + base64.b64encode(hashlib.sha1(AUTH.encode(), usedforsecurity=False).digest()).decode()
#: Until its loop runs, a node dies of SIGTERM like any program.
YOUNG_S: Final = 30.0
#: Size of the file system of one node's directory.
DISK: Final = "48m"


class Ensemble:
    """The nodes. `folder` gets a directory and a log per node."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan = plan
        self.folder = folder
        self.ids = list(range(1, plan.nodes + 1))
        ports = free_ports(3 * plan.nodes)
        self.client_ports = dict(zip(self.ids, ports, strict=False))
        self.peer_ports = dict(zip(self.ids, ports[plan.nodes :], strict=False))
        self.admin_ports = dict(zip(self.ids, ports[2 * plan.nodes :], strict=False))
        self.links = Links(self.peer_ports) if plan.has_proxies else None
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self.frozen: set[int] = set()
        #: Nodes whose directory was damaged or emptied. They may set files aside.
        self.damaged: set[int] = set()
        self.wiped: set[int] = set()
        #: Nodes that were removed from the store: they end.
        self.leaving: set[int] = set()
        #: Violations as lines of text.
        self.violations: list[str] = []
        self.counts: dict[str, int] = {}
        #: When (monotonic) a leader was killed.
        self.leader_kills: list[float] = []
        #: Times of all faults: begin, end, name.
        self.happened: list[tuple[float, float, str]] = []
        self._chance = random.Random(plan.seed)
        self._started: dict[int, float] = {}
        self._is_closed = False
        self._mounted: list[Path] = []
        self._lock = threading.RLock()
        folder.mkdir(parents=True, exist_ok=True)
        for node in self.ids:
            self.home(node).mkdir(mode=0o700)
            if plan.has_disks:
                command = ["mount", "-t", "tmpfs", "-o", f"size={DISK},mode=0700", "tmpfs", str(self.home(node))]
                subprocess.run(command, check=True, capture_output=True)
                self._mounted.append(self.home(node))

    # --- processes ----------------------------------------------------------------------------------------------------

    def home(self, node: int) -> Path:
        """Return the folder of a node's file system."""
        return self.folder / f"disk{node}"

    def data(self, node: int) -> Path:
        """Return a node's data directory."""
        return self.home(node) / "data"

    def log(self, node: int) -> Path:
        """Return a node's log file."""
        return self.folder / f"node{node}.log"

    @property
    def hosts(self) -> list[str]:
        """Return the client addresses."""
        return [f"127.0.0.1:{port}" for port in self.client_ports.values()]

    def command(self, node: int) -> list[str]:
        """Return the command line of a node."""
        plan = self.plan
        words = [
            *("coord", "run", "--id", str(node), "--data-dir", str(self.data(node)), "--cluster", "torture"),
            *("--client-address", f"127.0.0.1:{self.client_ports[node]}"),
            *("--admin-address", f"127.0.0.1:{self.admin_ports[node]}", "--super-digest", DIGEST),
            *("--tick-ms", str(plan.tick_ms), "--snapshot-entries", str(plan.snapshot_entries)),
            *("--keep-entries", str(plan.keep_entries), "--fsync", plan.fsync, "--max-connections-per-address", "0"),
            *("--trace", str(self.folder / f"trace{node}.ndjson")),
        ]
        if len(self.ids) == 1:
            return rk(*words)
        words += ["--peer-address", f"127.0.0.1:{self.peer_ports[node]}"]
        if node in self.wiped:
            others = [f"127.0.0.1:{port}" for other, port in self.peer_ports.items() if other != node]
            return rk(*words, "--join", ",".join(others))
        ports = {
            other: self.links.port(node, other) if self.links is not None and other != node else port
            for other, port in self.peer_ports.items()
        }
        return rk(*words, "--peers", ",".join(f"{other}=127.0.0.1:{port}" for other, port in ports.items()))

    def start(self, node: int) -> None:
        """Start a node unless it runs."""
        with self._lock:
            if node in self.processes or self._is_closed:
                return
            with self.log(node).open("ab") as out:
                self._started[node] = time.monotonic()
                limited = ["sh", "-c", f'ulimit -n {self.plan.descriptors}; exec "$@"', "sh", *self.command(node)]
                self.processes[node] = subprocess.Popen(
                    limited, stdout=out, stderr=out, stdin=subprocess.DEVNULL, start_new_session=True
                )

    def kill(self, node: int) -> None:
        """Kill a node with kill -9."""
        with self._lock:
            process = self.processes.pop(node, None)
            if process is None:
                return
            self.frozen.discard(node)
            self._note_end(node, process)
            process.kill()
            process.wait()

    def stop(self, node: int, *, timeout_s: float = 90.0) -> None:
        """Stop a node with SIGTERM, and check that it ends cleanly."""
        with self._lock:
            process = self.processes.get(node)
            if process is None or node in self.frozen:
                return
            if not self._is_up(node):
                # Before its loop runs, the node dies of the signal like any program.
                self.kill(node)
                return
            del self.processes[node]
            # Operators signal the process, or the whole group with its children.
            if self._chance.random() < 0.5:
                os.killpg(process.pid, signal.SIGTERM)
            else:
                process.send_signal(signal.SIGTERM)
        try:
            status = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.violations.append(f"node {node} does not stop within {timeout_s:.0f} s of SIGTERM")
            process.kill()
            process.wait()
            return
        if status == -signal.SIGTERM and time.monotonic() - self._started[node] < YOUNG_S:
            return
        if status:
            self.violations.append(f"node {node} ends with {status} on SIGTERM")

    def freeze(self, node: int, is_frozen: bool) -> None:
        """Stop a node with SIGSTOP, and continue it later."""
        with self._lock:
            process = self.processes.get(node)
            if process is None or (node in self.frozen) == is_frozen:
                return
            os.kill(process.pid, signal.SIGSTOP if is_frozen else signal.SIGCONT)
            (self.frozen.add if is_frozen else self.frozen.discard)(node)

    def _note_end(self, node: int, process: subprocess.Popen[bytes]) -> None:
        """Record a node that has ended by itself without a good reason."""
        status = process.poll()
        if status is not None and not (node in self.leaving and status == 0):
            self.violations.append(f"node {node} ended by itself with {status}")

    def look(self) -> None:
        """Find nodes that have ended by themselves."""
        with self._lock:
            for node, process in list(self.processes.items()):
                if process.poll() is not None:
                    self._note_end(node, process)
                    del self.processes[node]

    def _is_up(self, node: int) -> bool:
        """Return True if the node has started to serve."""
        try:
            with socket.create_connection(("127.0.0.1", self.admin_ports[node]), 0.2):
                return True
        except OSError:
            return False

    # --- what they say ------------------------------------------------------------------------------------------------

    def status(self, node: int) -> dict[str, Any]:
        """Return the status page. Raise OSError without one."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.admin_ports[node]}/status", timeout=5) as answer:
            return dict(json.load(answer))

    def statuses(self) -> dict[int, dict[str, Any]]:
        """Return the status of all nodes that answer."""
        found = {}
        for node in [node for node in self.processes if node not in self.frozen]:
            with contextlib.suppress(OSError, ValueError):
                found[node] = self.status(node)
        return found

    def leader(self) -> int:
        """Return the leader, 0 if none is known."""
        leading = [(state["term"], node) for node, state in self.statuses().items() if state["leader"] == node]
        return max(leading)[1] if leading else 0

    # --- faults -------------------------------------------------------------------------------------------------------

    def happen(self, fault: Fault) -> None:
        """Run a fault until it is over."""
        if fault.name in FORGETFUL and self.damaged - {fault.node}:
            return
        self.counts[fault.name] = self.counts.get(fault.name, 0) + 1
        began = time.monotonic()
        try:
            getattr(self, "_" + fault.name.replace("-", "_"))(fault)
        except Exception as error:  # on a separate thread, whose errors would go unnoticed
            self.violations.append(f"{fault.name} could not be made to happen: {error!r}")
        self.happened.append((began, time.monotonic(), fault.name))

    def _kill(self, fault: Fault) -> None:
        self.kill(fault.node)
        time.sleep(fault.for_s)
        self.start(fault.node)

    def _kill_leader(self, fault: Fault) -> None:
        if leader := self.leader():
            self.kill(leader)
            self.leader_kills.append(time.monotonic())
            time.sleep(fault.for_s)
            self.start(leader)

    def _stop(self, fault: Fault) -> None:
        self.stop(fault.node)
        time.sleep(fault.for_s)
        self.start(fault.node)

    def _freeze(self, fault: Fault) -> None:
        self.freeze(fault.node, True)
        time.sleep(fault.for_s)
        self.freeze(fault.node, False)

    def _freeze_leader(self, fault: Fault) -> None:
        if leader := self.leader():
            self.freeze(leader, True)
            time.sleep(fault.for_s)
            self.freeze(leader, False)

    def _storm(self, fault: Fault) -> None:
        rng = random.Random(fault.seed)
        for _ in range(rng.randint(3, 6)):
            (self.stop if rng.random() < 0.5 else self.kill)(fault.node)
            self.start(fault.node)
            time.sleep(rng.choice([0.05, 0.3, 0.6, 1.0, 1.5]))

    def _kill_all(self, fault: Fault) -> None:
        for node in self.ids:
            self.kill(node)
        time.sleep(min(1.0, fault.for_s))
        for node in self.ids:
            self.start(node)

    def _stop_all(self, fault: Fault) -> None:
        threads = [threading.Thread(target=self.stop, args=(node,)) for node in self.ids]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        time.sleep(min(1.0, fault.for_s))
        for node in self.ids:
            self.start(node)

    def _isolate(self, fault: Fault) -> None:
        self._shut(fault, lambda a, b: fault.node in (a, b), lambda a, b: fault.node in (a, b))

    def _isolate_one_way(self, fault: Fault) -> None:
        """Drop everything that leaves a node, or everything that reaches it, at random."""
        if fault.seed % 2:
            self._shut(fault, lambda a, b: a == fault.node, lambda a, b: b == fault.node)
        else:
            self._shut(fault, lambda a, b: b == fault.node, lambda a, b: a == fault.node)

    def _shut(self, fault: Fault, there: Any, back: Any) -> None:
        links = self.links
        assert links is not None
        links.each(lambda a, b, door: door.set(there=not there(a, b), back=not back(a, b)))
        time.sleep(fault.for_s)
        links.heal()

    def _reset_links(self, fault: Fault) -> None:
        assert self.links is not None

        def break_it(a: int, b: int, door: Door) -> None:
            if fault.node in (a, b):
                door.reset()

        self.links.each(break_it)

    def _slow_links(self, fault: Fault) -> None:
        assert self.links is not None
        delay_s = random.Random(fault.seed).choice([0.005, 0.03, 0.1])
        self.links.each(lambda a, b, door: door.set(there=True, back=True, delay_s=delay_s))
        time.sleep(fault.for_s)
        self.links.heal()

    def _full(self, fault: Fault) -> None:
        filler = self.home(fault.node) / "filler"
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(1 << 16))
        # Fill the last page, too.
        with filler.open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(bytes(512)):
                pass
        rng = random.Random(fault.seed)
        if rng.random() < 0.3:
            time.sleep(fault.for_s / 2)
            # A node without any room may refuse to start; start it again when there is room.
            self.kill(fault.node)
        time.sleep(fault.for_s)
        filler.unlink(missing_ok=True)
        self.start(fault.node)

    def _flip(self, fault: Fault) -> None:
        def flip() -> None:
            segments = sorted((self.data(fault.node) / "wal").glob("*.log"))
            if segments:
                path = segments[fault.seed % len(segments)]
                used = len(path.read_bytes().rstrip(b"\0"))
                if used:
                    _flip_bit(path, fault.seed % used, fault.seed % 8)

        self._while_down(fault, flip)

    def _cut_log(self, fault: Fault) -> None:
        def cut() -> None:
            segments = sorted((self.data(fault.node) / "wal").glob("*.log"))
            if segments:
                used = len(segments[-1].read_bytes().rstrip(b"\0"))
                os.truncate(segments[-1], max(0, used - fault.seed % 3000))

        self._while_down(fault, cut)

    def _flip_snapshot(self, fault: Fault) -> None:
        def flip() -> None:
            snapshots = sorted((self.data(fault.node) / "snap").glob("*.snap"))
            if snapshots:
                path = snapshots[-1]
                _flip_bit(path, fault.seed % path.stat().st_size, fault.seed % 8)

        self._while_down(fault, flip)

    def _wipe(self, fault: Fault) -> None:
        def wipe() -> None:
            shutil.rmtree(self.data(fault.node), ignore_errors=True)
            self.wiped.add(fault.node)

        self._while_down(fault, wipe)

    def _while_down(self, fault: Fault, change: Any) -> None:
        """Damage a node that is down, and no other node until this one has caught up."""
        node = fault.node
        if not self._is_whole() or (self.data(node) / "damaged").exists():
            # Other nodes may need this node's data; and a second repair is refused.
            return
        self.damaged.add(node)
        self.kill(node)
        change()
        self.start(node)
        self._until_caught_up(fault)
        if not (self.data(node) / "damaged").exists():
            # The damage hit no relevant bytes, or the node has its state from the others.
            self.counts["unnoticed"] = self.counts.get("unnoticed", 0) + 1

    def _is_whole(self) -> bool:
        """Return True if all nodes run and have caught up."""
        states = self.statuses()
        return len(states) == len(self.ids) and not any(state["joining"] for state in states.values())

    def _until_caught_up(self, fault: Fault) -> None:
        node = fault.node
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError, ValueError):
                state = self.status(node)
                if state["leader"] and not state["joining"]:
                    break
            time.sleep(0.05)
        else:
            self.violations.append(f"node {node} has not caught up 30 s after {fault.name}")

    def _replace(self, fault: Fault) -> None:
        node = fault.node
        if not self._is_whole():
            return
        process = self.processes[node]
        self.leaving.add(node)
        if self._tool("remove", str(node)):
            self.leaving.discard(node)
            return
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            self.violations.append(f"node {node} does not end 30 s after it was taken out of the store")
            return
        self.look()
        self.leaving.discard(node)
        shutil.rmtree(self.data(node))
        self.wiped.add(node)
        self.start(node)
        peer, client = f"127.0.0.1:{self.peer_ports[node]}", f"127.0.0.1:{self.client_ports[node]}"
        if self._tool("add", str(node), "--peer", peer, "--client", client):
            self.violations.append(f"node {node} is not let in again")
        self._until_caught_up(fault)

    def _transfer(self, fault: Fault) -> None:
        self._tool("transfer-leader", str(fault.node))

    def _tool(self, *words: str) -> int:
        """Run `rk coord …` with super's credential. Return its exit status."""
        command = rk("coord", *words, "--store", ",".join(self.hosts), "--auth", AUTH)
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        if "Traceback" in done.stderr:
            self.violations.append(f"rk coord {' '.join(words)}: {done.stderr}")
        return done.returncode

    def _flood(self, fault: Fault) -> None:
        rng = random.Random(fault.seed)
        sockets: list[socket.socket] = []
        words = (b"", b"", b"\0\0\0\x2c", b"\xff\xff\xff\xff", b"GET / HTTP/1.0\r\n\r\n", b"srvr", rng.randbytes(300))
        for _ in range(rng.choice([20, 100, 300])):
            with contextlib.suppress(OSError):
                sock = socket.create_connection(("127.0.0.1", self.client_ports[fault.node]), 1)
                sockets.append(sock)
                sock.sendall(rng.choice(words))
        time.sleep(min(1.0, fault.for_s))
        for sock in sockets:
            sock.close()

    def lonely_kills(self, around_s: float) -> list[float]:
        """Return the times at which a leader was killed without any other fault for some time before and after."""
        return [
            at
            for at in self.leader_kills
            if sum(began < at + around_s and at - around_s < ended for began, ended, _ in self.happened) == 1
        ]

    # --- the end ------------------------------------------------------------------------------------------------------

    def mend(self) -> None:
        """End all faults, and start every node that can run."""
        if self.links is not None:
            self.links.heal()
        for node in self.ids:
            (self.home(node) / "filler").unlink(missing_ok=True)
            self.freeze(node, False)
        self.look()
        for node in self.ids:
            self.start(node)

    def close(self) -> None:
        """End all processes, and unmount the disks."""
        with self._lock:
            # Faults in progress would otherwise start nodes again.
            self._is_closed = True
            for node in list(self.processes):
                self.processes.pop(node).kill()
        if self.links is not None:
            self.links.close()

    def unmount(self) -> None:
        """Unmount the directories."""
        for folder in self._mounted:
            subprocess.run(["umount", "-l", str(folder)], check=False, capture_output=True)


def _flip_bit(path: Path, offset: int, bit: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ (1 << bit)]))
