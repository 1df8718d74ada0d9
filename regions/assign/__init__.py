"""The assigner: events in, effects out.

assigner.py           the entry: takes in one event at a time
decisions.py          what a replica needs now, and the writes and orders that follow
order_followup.py     the servers' answers to orders, and deadlines
outbox.py             effects that nobody has taken yet
validation.py         every invariant, recomputed
tables.py             changed records of tables and regions
servers.py            arrivals, departures, draining, fencing, flapping
selection.py          choose what to place now, singly or by a bulk plan; placement.py chooses one server
transition_writes.py  the two writes below /unassigned
orders.py             OPEN and CLOSE orders: queued per server, sent in batches, throttled
moves.py              accepted moves that have not begun
replacement.py        regions that cannot be created are replaced
schema_rollout.py     a new schema on its way to every region
"""
