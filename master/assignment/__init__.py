"""Shells around the pure assigner: each carries out one kind of effect.

transitions.py     writes and reads of /unassigned
dispatch.py        orders to region servers
registry.py        live servers, draining and fence marks
misplaced.py       what servers report and the catalog contradicts
server_events.py   servers that come and go; waits at a startup
history_writer.py  every step into the history
balancer.py        when to balance
waiters.py         requests that wait for a condition
"""
