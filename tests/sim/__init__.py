"""Deterministic simulations: `raft` (groups of cores), `store` (whole nodes and clients), `cluster` (masters and
servers)."""
