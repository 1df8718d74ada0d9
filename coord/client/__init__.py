"""A ZooKeeper client for processes that run a Twisted reactor."""
