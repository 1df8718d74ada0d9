"""The store: a ZooKeeper-compatible tree of znodes replicated by Raft."""

from pathlib import Path

from coord.compiled import choose_form

choose_form(Path(__path__[0]))
