"""Real ensembles under real faults, by seed: `python -m tests.torture --minutes 10`.

The simulation (`tests.sim.store`) runs whole nodes with simulated time, disk and network. This package runs the parts
that the simulation leaves out: processes, the log's thread, the reactor, the snapshot's child, sockets, signals, file
systems.

A round starts three or five nodes of `rk coord run` on small file systems, and kazoo clients that work (`clients`).
Meanwhile faults hit the nodes at times and in an order that the seed determines (`plan`, `ensemble`, `links`). Then all
faults end, and the round checks (`checks`, `rounds`):

- no acknowledged write is lost or done twice, the order of each session is kept, sequence numbers are unique;
- a register read behind a sync is linearizable; transactions are whole; ephemerals exist as long as their session
  does, and no longer; no client reads newer data before the event of its watch;
- all nodes hold the same state, their directories are sound (`rk coord verify`), no file is set aside as
  damaged unless a fault damaged it; every stopped process ends with status 0; no log has a traceback;
- after the last fault everything works again within a bound.

The seed determines the faults of the nodes, but not the requests of the clients, which depend on the times of the
answers.
"""
