"""Other people's test suites, run against our store in Apache ZooKeeper's place."""
