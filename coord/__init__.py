"""The store: a ZooKeeper-compatible tree of znodes replicated by Raft."""
