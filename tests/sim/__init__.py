"""Deterministic simulation of Raft groups: one seed decides clocks, network, disks, crashes, changes and clients.

    python -m tests.sim --seed 17 --nodes 3             one run; prints what happened, or the violated invariant
    python -m tests.sim --seed 17 --nodes 3 --trace     every event, one per line
    python -m tests.sim --from 1000 --count 500         many

`chance` is the only source of randomness, `disk` what a node's disk holds and loses, `checks` the invariants,
`cluster` the event loop with clocks, network and the shells that drive the real cores, `faults` what is done to them.
"""
