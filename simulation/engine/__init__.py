"""The engine of every simulation: one timeline, one source of random numbers, processes with clocks, byte streams.

chance.py     the seeded source of all random numbers
timeline.py   events in the order of time; the digest of a run
history.py    one history of a seed, and how to repeat it when an invariant does not hold
disk.py       a data directory that loses unsynced sectors and names
process.py    processes with their own reactor and clock, which can be killed and frozen
network.py    connections between machines, as Twisted protocols use them

`chance` and `timeline` import nothing of the product. The simulations of Raft groups and of store nodes (tests/sim) use
both. The modules live here, and not beside the tests, because `rk simulate` ships with this package.
"""
