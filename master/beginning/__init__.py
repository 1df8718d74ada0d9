"""The beginning of a tenure: what the store has, and the wait for the first heartbeats."""
