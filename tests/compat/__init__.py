"""Test suites of other projects, run against our store in place of Apache ZooKeeper."""
