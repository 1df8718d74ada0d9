"""The cluster state on which the assigner bases its decisions.

state.py      all of it, indexed and counted; entities.py: tables, regions, replicas, servers
work.py       the states of a write and of an order, and where a replica is counted
events.py     what happened: input of the assigner
effects.py    what must be done: output of the assigner
limits.py     time limits, attempts, orders per server; deadlines.py beside it
causes.py     cause ids: which request, event or timer began the work
history.py    every step, as history keeps it
mirror.py     the standby's copy of the store
"""
