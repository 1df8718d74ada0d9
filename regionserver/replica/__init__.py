"""Replicas on this server.

states.py       the life cycle as a table
machine.py      orders and answers in, effects out (pure)
effects.py      those effects
readback.py     was our step taken? the answer from the store's content
host.py         carries the effects out
step_writer.py  steps of transitions in multis
opener.py       THE INTERFACE of a service: open, close, progress, answer
"""
