"""The policy of members against a simple model of one Raft group."""
