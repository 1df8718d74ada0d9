"""One multi-Raft host for all tablets of a server. Pure: events in, effects out. Read in this order:

words.py      why a server refuses a message
envelope.py   frames between two hosts: Raft messages that name both replicas; BEATs
delivery.py   which messages reach a replica: a table
beats.py      liveness between servers
requests.py   what clients ask, what they are answered, and how much may wait
reads.py      reads that wait for a leader's confirmation
log_memory.py what a log takes in memory, and what is on the disk alone
group.py      one tablet: a Raft core and the requests that wait for it
recovery.py   a group as it was when its process ended
turn.py       all groups of a server: one list of log items, one frame per peer, one apply round per tablet
"""
