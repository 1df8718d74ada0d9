"""Tests of the simulation of tablets (`simulation/tablets`), and long runs of it.

planted.py   planted bugs; each must be found
bug.py       their base
table.py     their table in docs/simulation.md
soak.py      fresh seeds for as long as wanted
"""
