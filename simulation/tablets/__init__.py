"""Simulation of tablets: the real hosts of three to five servers on simulated machines; `rk simulate --tablets`.

storage/     the shared log as a model and the real one; rows as a dictionary with steady points
server.py    one server: its disk with the real steps on files, and the shell around a Turn
world.py     servers, links between them, and the work of the shells
lives.py     replicas from start to removal, with crashes between any two operations on the disk
copies.py    copies of replicas: real guards, merge and steps, one event each
changes.py   an operator and a small master who change members
splits/      splits and merges of tablets under all these faults (`--splits`, `--merges`)
clients.py   writers that retry, compare-and-set, readers
checks.py    invariants after every event
faults.py    the faults of the servers, and the final check that they recover
rest.py      the end of a history: tablets without work are quiet, and replace a lost leader
flaws.py     faults of the shell that planted bugs switch on (tests/sim/tablets)
rare.py      situations that the seeds must reach
run.py       runs from seeds to verdicts
"""
