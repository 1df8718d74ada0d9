"""Znodes whose latest value a process keeps, with a bound on its age."""
