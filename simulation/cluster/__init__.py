"""A simulated cluster: real masters and region servers on simulated machines, with a store, an operator and faults.

world.py         the cluster and its history: built, troubled, healed, asked whether it recovered
machines.py      masters and servers on simulated machines; region_work.py: openers and their threads
store.py         nodes that serve the real protocol from the real state machine, without Raft
operator.py      what people ask for meanwhile
faults.py        what goes wrong
"""
