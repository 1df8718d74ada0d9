"""The store: a ZooKeeper-compatible tree of znodes replicated by Raft."""

from pathlib import Path

from coord.compiled import settle

settle(Path(__path__[0]))
