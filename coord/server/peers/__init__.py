"""Links between the store's nodes, built on `coord.peers`; transfers of snapshots in chunks.

codec.py              kinds and limits of frames, and the bodies that are not about Raft (pure)
hello_frames.py       the frames with which a connection begins (pure)
raft_frames.py        Raft messages and forwarded commands (pure, hot)
link.py               all links of a node: one connection per direction and pair of nodes, bounded queues
dialing.py            the outgoing side of a link, with back-off
accepting.py          the incoming side: which hellos are accepted
link_context.py       the identity of the own node, shared by both sides
snapshot_transfer.py  a snapshot transfer: chunks, checks, durable before use
"""
