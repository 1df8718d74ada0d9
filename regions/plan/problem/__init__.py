"""The planning problem: input rows, checked and numbered.

model.py      rows of the input and of the plan, parameters, errors
numbered.py   the input as numbers
quota.py      how many regions and bytes each server may take; room.py counts what is left
scenarios.py  seeded inputs for tests and benchmarks
"""
