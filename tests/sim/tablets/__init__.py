"""Tests of the simulation of tablets (`simulation/tablets`), and long runs of it.

planted.py         planted bugs; each must be found
planted_splits.py  planted bugs of splits
bug.py             their base
table.py           their tables in docs/simulation.md
soak.py            fresh seeds for as long as wanted
"""
