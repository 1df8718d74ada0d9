"""Calls to tablets: find the leader, follow it, and write once (docs/tablets.md).

answers.py     the meaning of each answer, as a table
pursuit.py     the next server to ask during one call; decides without clock or socket
numbers.py     numbers and times by which a write happens once; without clock or socket
hints.py       leaders, addresses and times that calls have learned
exchange.py    the requests of one call over pooled connections, several at once
stale.py       reads that any member may answer
calls.py       carries out the decisions of the pursuit
region_call.py one call to one tablet, in the caller's thread
context.py     shared state of all calls
"""
