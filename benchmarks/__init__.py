"""Benchmarks. They print measured figures and never assert times."""
