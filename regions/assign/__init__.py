"""The assigner: events in, effects out.

assigner.py           the entry: one event at a time
tables.py             changed records of tables and regions
servers.py            arrivals, departures, draining, fencing, flapping
selection.py          choose what to place now, singly or by a bulk plan; placement.py chooses one server
transition_writes.py  the two writes below /unassigned
orders.py             OPEN and CLOSE orders: queued per server, sent in batches, throttled
moves.py              accepted moves that have not begun
replacement.py        regions that cannot be created are replaced
schema_rollout.py     a new schema on its way to every region
"""
