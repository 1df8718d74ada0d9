"""Calls to tablets: find the leader, follow it, and write once (docs/tablets.md).

answers.py     the table of what each answer means
pursuit.py     whom to ask next during one call; decides without clock or socket
numbers.py     numbers and times that make a write happen once; without clock or socket
hints.py       leaders, addresses and times that calls have learned
exchange.py    the requests of one call over pooled connections, several at once
stale.py       reads that any member may answer
calls.py       carries out what the pursuit decides
region_call.py one call to one tablet, in the caller's thread
context.py     what all calls share
"""
