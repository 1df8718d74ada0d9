"""One multi-Raft host for all tablets of a server. Pure: events in, effects out. Read in this order:

words.py      why a server refuses a message
envelope.py   frames between two hosts: Raft messages that name both replicas; BEATs
delivery.py   which messages reach a replica: a table
beats.py      liveness between servers
requests.py   requests of clients, their answers, and limits of waiting requests
reads.py      reads that wait for a leader's confirmation
log_memory.py the size of a log in memory, and its entries that are only on the disk
group.py      one tablet: a Raft core and the requests that wait for it
recovery.py   a group restored from the shared log and the rows
turn.py       all groups of a server: one list of log items, one frame per peer, one apply round per tablet
"""
