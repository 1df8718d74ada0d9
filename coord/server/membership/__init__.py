"""Membership of the store: its members, changes of the members, nodes that join and leave.

request.py    membership requests and answers: checks, and the JSON that nodes exchange (pure)
steps.py      a requested membership as a list of single-server changes (pure)
reconfig.py   the requests of this node's clients, from the node to the leader and back
leading.py    the leader's side: one request at a time, step by step
levels.py     the feature level: what peers support, when the leader raises it
joining.py    a node that restarted without its memory
discovery.py  a new node asks members for the cluster id and the configuration
removal.py    the end of a node that is not a member any more
"""
