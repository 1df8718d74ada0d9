"""The shell of a store node: sockets, disk and time around the pure parts.

    client bytes -> client_listener -> pipeline ---- reads ----> StateMachine.read -> output
                                          | writes
                                       proposals -> node: group -> RaftCore.propose  (leader)
                                                      |         -> FORWARD to the leader (follower)
                                                      v
                 peers.link <- messages - Ready - entries -> LogWriter (sync in a thread)
                                                      |
                                                  committed -> StateMachine.apply_group -> outcomes
                                                      |
                                       pipeline: events, then replies -> output -> one send per client and turn

Who owns which rule:

- `node`       the order persist, send, apply, answer; messages that depend on the disk wait for it
- `proposals`  a command is applied once and in order, whatever happens to leaders and links
- `pipeline`   a session's requests in order; events before replies before later reads
- `syncs`      sync is a read index
- `recovery`   what snapshot and log mean together after a crash
- `transfer`   a state from another node is whole and durable before it is used
- `reactor`    a turn: read all ready sockets, then act once

`node` and everything it imports take time, chance, disk and links as arguments; `tests/support/store_nodes.py` runs
whole nodes in memory. `service` puts the real doors in.

Deviations from ZooKeeper, all visible to clients only where ZooKeeper's behaviour is a fault:

- zxid counts commands, 64 bits without an epoch; one Raft entry holds a group of them.
- A change of leader is not seen by clients of the other nodes: their requests wait. Clients are cut off only when
  there has been no leader for `leader_absence_ms`.
- sync is confirmed by a majority.
- A wrong password does not cut the session's true owner.
- A request beyond the bound of outstanding ones is not read yet, rather than refused.
"""
