"""One multi-Raft host for all tablets of a server. Pure: events in, effects out. Read in this order:

envelope.py   frames between two hosts: Raft messages that name both replicas, refusals, BEATs
delivery.py   the messages that reach a replica: a table
beats.py      liveness between servers
requests.py   requests of clients, their answers, limits of waiting requests, reads that wait for a confirmation
log_memory.py the size of a log in memory, and its entries that are only on the disk
group.py      one tablet: a Raft core and the requests that wait for it
recovery.py   a group restored from the shared log and the rows
output.py     the output of a turn
turn.py       all groups of a server: one list of log items, one frame per peer, one apply round per tablet
members.py    servers of the members, and changes of the members
quiet.py      tablets without work: no ticks, no messages
wanted_copies.py members that need a copy of the rows
"""
