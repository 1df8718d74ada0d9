"""Our store, compiled and interpreted, against Apache ZooKeeper on the same machine in the same minutes."""
