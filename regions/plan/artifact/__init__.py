"""Plans as artifacts: writing, reading, verifying, comparing and explaining them.

files.py     snapshots and plans as files
digest.py    identities of a plan and of a planner's input
verify.py    checks any plan against the rules
compare.py   compares two plans
figures.py   figures of one plan
binding.py   which rule kept a replica from a better server
revert.py    moves that take an applied plan back
"""
