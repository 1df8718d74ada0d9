"""Fuzzing of everything that reads bytes from elsewhere: `make fuzz`, and a short fixed form among the unit tests.

`targets` says what is called and what must hold whatever the bytes are, `corpus` where the search begins, `limits` how
much one case may cost, `mutate` how new cases come from old ones where atheris cannot be had, `__main__` runs it all.
"""
