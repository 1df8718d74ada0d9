"""The compiled form of the hot modules of store, tablets and assigner: the list of them, and the choice of the form at
import.

`pip install` compiles SOURCES with mypyc where possible (setup.py) and writes a stamp: the fingerprint of the compiled
sources. The package `coord` calls `choose_form` before it imports any other module; every other package with compiled
modules imports `coord` first. `choose_form` allows the compiled form only if the stamp equals the fingerprint of the
present sources. So an edited module takes effect, all modules run in the same form (compiled classes know each other's
layout), and an interrupted build has no effect.

With RK_PURE=1 in the environment nothing is compiled and no compiled module is used.

    python coord/compiled.py            prints SOURCES, for the Makefile
"""

from __future__ import annotations

import hashlib
import os
import sys
from importlib.machinery import EXTENSION_SUFFIXES, SOURCE_SUFFIXES, FileFinder, SourceFileLoader
from pathlib import Path
from typing import Final

PURE_VARIABLE: Final = "RK_PURE"
#: Values of a switch in the environment that leave it off.
OFF: Final = ("", "0", "no", "false", "off")
#: Name of the shared library with the compiled code. Each module has a small extension module that loads it.
GROUP: Final = "coord.native"
_LIBRARY: Final = "native__mypyc"
_STAMP: Final = "compiled.stamp"

#: Folder -> modules. Their classes are compiled as well: no dataclasses, no msgspec.Struct.
_MODULES: Final = {
    "coord/client": "ops watches",
    "coord/metrics": "spans",
    "coord/peers": "accepting dialing framing stream turn_loop",
    "coord/raft": "bounds core follower leadership log membership messages output progress quorum reads",
    "coord/server": "node node_settings submission",
    "coord/server/clients": "connection handshake listener pipeline proposals syncs table",
    "coord/server/membership": "leading levels reconfig removal",
    "coord/server/peers": "accepting codec dialing hello_frames link link_context raft_frames snapshot_transfer",
    "coord/server/recovery": "divergence",
    "coord/server/snapshots": "policy transfers",
    "coord/server/sessions": "contact endings liveness",
    "coord/storage": "records segments wal",
    "coord/storage/shared": "batch codec index log trails",
    "coord/tree": "acl command datatree levels machine node plan quota reads sessions snapshot watches",
    "coord/wire": "client_conn codec jute multi opcodes values",
    "master/assignment": "transition_times write_queue",
    "regions/assign": "assigner decisions moves order_followup orders outbox placement replacement selection servers"
    " transition_writes",
    "regions/assign/catalog": "checks schema_rollout takeover updates",
    "regions/cluster": "causes deadlines entities mirror state work",
    "regions/cluster/indexes": "keyed",
    "regions/cluster/reads": "answers changed",
    "regions/diagnose": "invariants",
    "regions/diagnose/live": "doubts work_in_progress",
    "regions/liveness": "reports",
    "regions/records": "replica_key znodes",
    "regions/page": "model rows",
    "regions/transitions": "hazards next_action observed steps trail writes",
    "regionserver/kv": "rows",
    "regionserver/replica": "finished_orders host local_replica machine order_batch orders step_records step_writer",
    "regionserver/tablets": "commands writers",
    "regionserver/tablets/host": "beats envelope group log_memory output quiet requests turn",
    "regionserver/tablets/rows": "digest round",
}
#: Paths of the compiled modules, relative to the root of the source tree.
SOURCES: Final = tuple(f"{folder}/{name}.py" for folder, names in _MODULES.items() for name in names.split())

#: Why this process runs interpreted; "" if it runs the compiled form. Set by `choose_form`.
_reason = "not started"


def is_switched_on(variable: str) -> bool:
    """Return True if an environment variable such as RK_PURE or RK_DEBUG is set, and not to one of OFF.

    All switches are read by this function. It is here because setup.py runs this file before anything is installed.
    """
    return os.environ.get(variable, "").strip().lower() not in OFF


def stamp_path(root: Path) -> Path:
    """Return the path of the stamp of a build in the tree `root`."""
    return root / "coord" / _STAMP


def fingerprint(root: Path) -> str:
    """Return a hash of the sources in the tree `root`. Raise OSError if a source is missing."""
    content = hashlib.sha256()
    for source in SOURCES:
        content.update(source.encode())
        content.update((root / source).read_bytes())
    return content.hexdigest()


def choose_form(folder: Path) -> None:
    """Choose the form of all compiled modules, before any of them is imported. `folder` is that of `coord`."""
    global _reason  # noqa: PLW0603 (one process, one decision)
    _reason = _why_interpreted(folder)
    if _reason:
        parts = {str(folder.parent / part) for part in _MODULES}

        def sources_only(path: str) -> FileFinder:
            if path not in parts:
                raise ImportError(path)
            return FileFinder(path, (SourceFileLoader, SOURCE_SUFFIXES))

        sys.path_hooks.insert(0, sources_only)
        for part in parts:
            sys.path_importer_cache.pop(part, None)


def _why_interpreted(folder: Path) -> str:
    if is_switched_on(PURE_VARIABLE):
        return f"{PURE_VARIABLE} is set"
    if not _is_built(folder):
        return "not compiled for this Python"
    return "" if is_current(folder) else "the sources have changed since they were compiled"


def _is_built(folder: Path) -> bool:
    return (folder / _STAMP).exists() and (folder / (_LIBRARY + EXTENSION_SUFFIXES[0])).exists()


def is_current(folder: Path) -> bool:
    """Return True if the modules below `folder` are compiled for this Python from the present sources."""
    try:
        return _is_built(folder) and (folder / _STAMP).read_text() == fingerprint(folder.parent)
    except OSError:
        return False


def libraries(root: Path) -> list[Path]:
    """Return the files that a build in place has made in the tree `root`: the shared libraries and the stamp."""
    suffix = EXTENSION_SUFFIXES[0]
    modules = [root / source.removesuffix(".py") for source in SOURCES]
    parts = [*modules, root / "coord" / _LIBRARY]
    return [*(path.with_name(path.name + suffix) for path in parts), stamp_path(root)]


def form() -> str:
    """Return `compiled`, or `interpreted` with the reason, for versions and status lines."""
    return f"interpreted: {_reason}" if _reason else "compiled"


if __name__ == "__main__":
    sys.stdout.write(" ".join(SOURCES) + "\n")
