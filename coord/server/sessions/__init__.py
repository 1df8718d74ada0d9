"""Sessions of this node's clients: their lifetime, and the nodes that may end them.

contact.py   the lease from the leader during which this node may reply to its clients
liveness.py  reports to the leader; at the leader, the expiry of silent sessions
endings.py   sessions that are about to expire, and the nodes that must agree first
"""
