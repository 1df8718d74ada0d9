"""Simulation of tablets: the real hosts of three to five servers on simulated machines.

disk.py      a model of a server's shared log, with kills and power cuts
real_log.py  the shared log itself, on a disk that loses sectors, compared with that model
rows.py      rows of one replica: a dictionary with steady points
server.py    one server: the shell around a Turn
world.py     servers, links between them, and what the shells do
clients.py   writers that retry, compare-and-set, readers
checks.py    invariants after every event
faults.py    the faults of the servers, and the final check that they recover
planted.py   planted bugs; each must be found
"""
