"""Links between the store's nodes: frames, proof of membership, snapshots in chunks.

codec.py              kinds and limits of frames, and the bodies that are not about Raft (pure)
hello_frames.py       the frames with which a connection begins (pure)
raft_frames.py        Raft messages and forwarded commands (pure, hot)
guard.py              proof of membership: shared secret, certificates, cluster id
link.py               one connection per direction and pair of nodes, with back-off and bounded queues
snapshot_transfer.py  a snapshot on its way: chunks, checks, durable before use
partition.py          cuts links on request, for drills
"""
