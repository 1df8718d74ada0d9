"""Links between the store's nodes: frames, proof of membership, snapshots in chunks.

codec.py              kinds and limits of frames, and the bodies that are not about Raft (pure)
hello_frames.py       the frames with which a connection begins (pure)
raft_frames.py        Raft messages and forwarded commands (pure, hot)
guard.py              proof of membership: shared secret, certificates, cluster id
link.py               all links of a node: one connection per direction and pair of nodes, bounded queues
dialing.py            the outgoing side of a link, with back-off
accepting.py          the incoming side: whose hello is accepted
link_context.py       what both sides know of their own node
snapshot_transfer.py  a snapshot on its way: chunks, checks, durable before use
partition.py          cuts links on request, for drills
"""
