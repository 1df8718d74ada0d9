"""The cluster state on which the assigner bases its decisions.

state.py      the whole state, with indexes and counts
entities.py   tables, regions, replicas, servers
work.py       states of a write and of an order, and where a replica is counted
events.py     input of the assigner
effects.py    output of the assigner
limits.py     time limits, attempts, orders per server
deadlines.py  overdue opens and closes
causes.py     cause ids: which request, event or timer began the work
history.py    format and limits of the history of steps
past.py       the cluster at an earlier point, and who has held a region: folds over the history
mirror.py     a standby's copy of the store
validation.py recomputes the invariants of the state
indexes/      a dict for many keys
reads/        which znodes must be read, and what the replies say
"""
