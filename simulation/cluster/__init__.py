"""A simulated cluster: real masters and region servers on simulated machines, with a store, an operator and faults.

cluster.py       the cluster and one run: start, faults, repair, recovery
machines.py      masters and servers on simulated machines; region_work.py: their openers and threads
store.py         nodes that serve the real protocol from the real state machine, without Raft
operator.py      requests of an operator during the run
faults.py        the faults
"""
