"""Deterministic simulation of whole store nodes and their clients: one seed decides everything.

    python -m tests.sim.store --seed 17 --nodes 5             one run; prints the violation, if any
    python -m tests.sim.store --seed 17 --nodes 5 --trace     every event, one per line
    python -m tests.sim.store --from 1000 --count 500         many

`disk` simulates a machine's disk, `net` the byte streams between machines, `machinery` the services of a process's
system. `world` has the event loop and the processes (the real node, links, client port, log and snapshots). `clients`
speak the wire protocol; `watching` predicts the events of their watches. `model` is the simple tree that predicts every
answer, and `checks` compares. `faults` injects faults into all of them. `planted` has the bugs that prove that the
simulation works.
"""
