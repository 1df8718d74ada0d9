"""Simulation of the master's side of tablets: the real keeper over a store, servers and Raft groups as models."""
