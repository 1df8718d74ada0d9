"""Simulation of tablets: the real hosts of three or five servers, on machines that do not exist.

disk.py      a server's shared log: what a kill and a power cut leave of it
real_log.py  the shared log itself, on a disk that loses sectors, beside that model
rows.py      rows of one replica: a dictionary with steady points
server.py    one server: the shell around a Turn
world.py     servers, links between them, and what the shells do
clients.py   writers that retry, compare-and-set, readers
checks.py    invariants after every event
faults.py    what is done to the servers; afterwards the demand that they recover
planted.py   bugs on purpose; each must be found
"""
