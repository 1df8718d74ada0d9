"""Benchmarks: they print, they never assert times."""
