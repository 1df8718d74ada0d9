"""Follow settings below a znode with kazoo, without missing a version; go on where the program stopped.

    python examples/settings_watch.py --store 127.0.0.1:2181 /settings settings.token

Prints one line for each created, changed and deleted znode, and one for each gap: what was missed while the connection
or the program was away. The token is replaced after each event was printed. Needs kazoo; works with every ZooKeeper.
"""

from __future__ import annotations

import argparse
import os
import threading
from pathlib import Path

from kazoo.client import KazooClient

from coord.client.kazoo_watch import KazooWatch
from coord.client.versions import VersionEvent, VersionKind


def line(event: VersionEvent) -> str:
    """Return an event as one line."""
    if event.kind is VersionKind.GAP:
        return f"{event.path}  missed {'an unknown number of' if event.missed is None else event.missed} changes"
    value = f"  version {event.version}: {event.data!r}" if event.version >= 0 else ""
    return f"{event.path}  {event.kind.lower()}{value}"


def save(file: Path, token: bytes) -> None:
    """Replace the token durably."""
    fresh = file.with_suffix(".new")
    with fresh.open("wb") as out:
        out.write(token)
        out.flush()
        os.fsync(out.fileno())
    fresh.replace(file)


def main() -> None:
    """Follow until Ctrl-C."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--store", required=True, help="HOST:PORT,… of the store")
    options.add_argument("path", help="the znode whose children are the settings")
    options.add_argument("token", type=Path, help="file for the state of the watch")
    given = options.parse_args()
    client = KazooClient(given.store, connection_retry={"max_tries": -1})
    token = given.token.read_bytes() if given.token.exists() else b""
    watch = KazooWatch(client, given.path, lambda event: print(line(event), flush=True), children=True, token=token)
    watch.on_progress = lambda: save(given.token, watch.token)
    client.start()
    watch.start()
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        watch.stop()
        client.stop()


if __name__ == "__main__":
    main()
