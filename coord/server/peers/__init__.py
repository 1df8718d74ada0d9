"""Links between the store's nodes: framing, proof of membership, snapshots in chunks.

codec.py              frames of the peer protocol: bytes in, values out (pure)
guard.py              proof of membership: shared secret, certificates, cluster id
link.py               one connection per direction and pair of nodes, with back-off and bounded queues
snapshot_transfer.py  a snapshot on its way: chunks, checks, durable before use
partition.py          cuts links on request, for drills
"""
