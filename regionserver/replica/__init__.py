"""The replicas on this server. Read in this order:

states.py           the life cycle: one table that decides by (phase, event, held)
orders.py           the effect of an order in each phase: a table
machine.py          orders and results in, effects out (pure)
local_replica.py    the data of one replica
finished_orders.py  results of finished orders, for masters that repeat an order
step_records.py     the records that each step of a transition writes
readback.py         whether a step was committed, by the store's content: a table
effects.py          the effects of the machine
invariants.py       invariants, recomputed from first principles, for tests and simulations
host.py             carries the effects out
step_writer.py      writes steps of transitions in multis
order_batch.py      the orders of one command, and the time of its reply
"""
