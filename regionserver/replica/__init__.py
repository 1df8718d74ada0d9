"""Replicas on this server. Read in this order:

states.py           the life cycle: one table that decides (phase, event, held)
orders.py           what an order means in each phase: a table
machine.py          orders and answers in, effects out (pure)
local_replica.py    what is kept of one replica
finished_orders.py  the ends of orders, for masters that ask again
step_records.py     what each step of a transition writes
readback.py         was our step taken? the answer from the store's content: a table
effects.py          what the machine wants done
invariants.py       what always holds, recomputed from first principles, for tests and simulations
host.py             carries the effects out
step_writer.py      steps of transitions in multis
"""
