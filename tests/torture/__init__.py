"""Real ensembles under real faults, by seed: `python -m tests.torture --minutes 10`.

The simulation (`tests.sim.store`) runs whole nodes with time, disk and network of its own; what it leaves out is what
this runs: processes, the log's thread, the reactor, the snapshot's child, sockets, signals, file systems.

A round starts three or five nodes of `rk coord run` on small file systems, lets kazoo clients work (`clients`), lets
things happen to the nodes at times and in an order that the seed fixes (`plan`, `ensemble`, `links`), mends everything,
and then asks (`checks`, `rounds`):

- nothing acknowledged is lost, nothing is done twice, the order of each session is kept, sequence numbers are unique;
- a register read behind a sync is linearizable; transactions are whole; ephemerals are there as long as their session
  is, and no longer; nobody reads something newer before the event of their watch;
- all nodes hold the same state, their stopped directories are sound (`rk coord verify`), nothing is set aside as
  damaged that nobody damaged; every process that was told to stop ends with status 0; no traceback in any log;
- after the last fault everything works again within a bound.

What the clients do is not fixed by the seed, as it depends on when they are answered; what happens to the nodes is.
"""
