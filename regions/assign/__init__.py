"""The assigner: events in, effects out.

assigner.py           the entry point: handles one event at a time
decisions.py          what a replica needs now, and the resulting writes and orders
order_followup.py     replies to orders, and deadlines
outbox.py             effects that have not been taken yet
validation.py         recomputes every invariant
catalog/              take-over, changed records of tables and regions, schema rollout
servers.py            registration, expiry, draining, fencing and flapping of servers
selection.py          selects the replicas to place now, one by one or by a bulk plan
placement.py          chooses one server for one replica
transition_writes.py  the two writes below /unassigned
orders.py             OPEN and CLOSE orders: queued per server, sent in batches, throttled
moves.py              accepted moves that have not begun
replacement.py        replaces regions that cannot be created
resharding/           splits and merges of regions
"""
