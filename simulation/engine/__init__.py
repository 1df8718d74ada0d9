"""What every simulation runs on: one timeline, one source of chance, processes with clocks, streams of bytes.

chance.py     the seed: everything random draws from a stream of this kind
timeline.py   events in the order of time, the digest of what happened
process.py    processes with a reactor and a clock of their own, killed and frozen
network.py    connections between machines, as Twisted protocols use them

`chance` and `timeline` import nothing of the product. The simulations of Raft groups and of store nodes (tests/sim) run
on the two; they live here, and not beside the tests, because `rk simulate` ships with this package.
"""
