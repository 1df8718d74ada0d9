"""Sessions of this node's clients: how long they live, and who may end them.

contact.py   contact with the leader: until when this node may answer its clients
liveness.py  reports to the leader, and at the leader the end of silent sessions
endings.py   sessions about to end, and the nodes that must agree first
"""
