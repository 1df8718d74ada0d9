"""Members of the store: who is one, how that changes, how a node joins and leaves.

steps.py      a requested membership as single-server changes (pure)
reconfig.py   a reconfig request from the client's node to the leader and back
joining.py    a node that came back without its memory
discovery.py  a new node asks members for the cluster id and the configuration
removal.py    the end of a node that is no member any more
"""
