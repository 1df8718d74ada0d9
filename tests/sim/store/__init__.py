"""Deterministic simulation of whole store nodes and their clients: one seed decides everything.

    python -m tests.sim.store --seed 17 --nodes 5             one run; says what was violated, if anything
    python -m tests.sim.store --seed 17 --nodes 5 --trace     every event, one per line
    python -m tests.sim.store --from 1000 --count 500         many

`disk` is what a machine's disk holds and loses, `net` the byte streams between machines, `machinery` what a process
gets from its system, `world` the event loop and the processes (the real node, links, client port, log and snapshots),
`clients` speak the wire protocol and `watching` knows what their watches must bring, `model` is the simple tree that
says what every answer must be, `checks` the judge, `faults` what is done to all of them, `planted` the bugs that prove
the simulation's worth.
"""
