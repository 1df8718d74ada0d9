"""Indexes of the cluster state.

keyed.py    a dict for up to millions of keys, each of whose steps is short
"""
