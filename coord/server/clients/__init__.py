"""Clients of a store node: from the accepted socket to the reply.

Read in the order of a request:

    listener.py        the client port: accepts sockets, reads frames, sends the output of a turn
    connection.py      one client's connection: identities, pending requests, output, bounds
    table.py           all connections of the node, by connection and by session, and their figures
    handshake.py       connect requests: sessions are opened and moved through the log
    authentication.py  checks credentials, returns identities
    audit.py           the audit log, bounded
    pipeline.py        one session's requests in order: reads are answered, writes are proposed
    proposals.py       this node's commands until they are applied, over any number of leader changes
    syncs.py           sync: a read index, answered when that index is applied
    read_only.py       requests that a node without a leader still serves

`node.py` and `service.py` use this package from outside; nothing else does.
"""
