"""Benchmarks of assignment: the cost of starts, failovers, table operations and heartbeats."""
