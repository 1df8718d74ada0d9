"""The shell of a store node: sockets, disk and time around the pure parts.

    client bytes -> clients.listener -> clients.pipeline ---- reads ----> StateMachine.read -> output
                                          | writes
                                       clients.proposals -> submission: batch -> RaftCore.propose  (leader)
                                                                |        -> FORWARD to the leader (follower)
                                                                v
                peers.link <- messages - Ready (node) - entries -> LogWriter (sync in a thread)
                                                                |
                                                            committed -> StateMachine.apply_group -> outcomes
                                                                |
                              clients.pipeline: events, then replies -> output -> one send per client and turn

Which module guarantees what:

- `node`                     the order persist, send, apply, reply; messages that depend on the disk wait for the disk
- `submission`               the leader's batches, the other nodes' forwards
- `clients.proposals`        a command is applied once and in order, whatever happens to leaders and links
- `clients.pipeline`         a session's requests in order; events before replies before later reads
- `clients.syncs`            a sync is a read index
- `recovery.startup`         what snapshot and log mean together after a crash
- `snapshots.transfers`      a state from another node is whole and durable before it is used
- `sessions`, `membership`   act on the node through `context.NodeContext`
- `net.reactor`              a turn: read all ready sockets, then act once

`node` and everything it imports take time, chance, disk and links as arguments; `tests/support/store_nodes.py` runs
whole nodes in memory. `service` provides the real ones.

Deviations from ZooKeeper, all visible to clients only where ZooKeeper's behavior is a fault:

- zxid counts commands, 64 bits without an epoch; one Raft entry holds a batch of them.
- A change of leader is not seen by clients of the other nodes: their requests wait. Clients are cut off only when
  there has been no leader for `leader_absence_ms`.
- sync is confirmed by a majority.
- A wrong password does not cut the session's true owner.
- A request beyond the bound of outstanding ones is not read yet, rather than refused.
"""
