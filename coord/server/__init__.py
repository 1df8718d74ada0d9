"""The I/O side of a store node: sockets, disk and time around the pure parts.

    client bytes -> clients.listener -> clients.pipeline ---- reads ----> StateMachine.read -> output
                                          | writes
                                       clients.proposals -> submission: batch -> RaftCore.propose  (leader)
                                                                |        -> FORWARD to the leader (follower)
                                                                v
                peers.link <- messages - Ready (node) - entries -> LogWriter (sync in a thread)
                                                                |
                                                            committed -> StateMachine.apply_batch -> outcomes
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
- `config`, `admin`          settings, and the interfaces for operators and monitoring
- `coord.peers.reactor`      a turn: read all ready sockets, then act once

`node` and its imports take time, randomness, disk and links as arguments; `tests/support/store_nodes.py` runs whole
nodes in memory. `service` passes the real ones.

Deviations from ZooKeeper, all visible to clients only where ZooKeeper's behavior is a fault:

- zxid counts commands, 64 bits without an epoch; one Raft entry holds a batch of them.
- Clients of the other nodes do not notice a change of leader: their requests wait. Their connections are closed only
  after `leader_absence_ms` without a leader.
- sync is confirmed by a majority.
- A connect request with a wrong password does not disconnect the session's owner.
- A node stops reading a client that has too many outstanding requests, instead of rejecting requests.
"""
