"""Raft as a pure core: messages and ticks in, messages, entries and state out."""
