"""`rk drill`: one module per drill, and what they share: load, invariants, report."""
