"""Fuzzing of all code that reads bytes from outside: `make fuzz`, and a short fixed form among the unit tests.

`targets` has the called functions and their invariants for any bytes, `corpus` the first inputs, `limits` the bounds of
one case. `mutate` makes new cases from old ones if atheris is not available. `__main__` runs the search.
"""
