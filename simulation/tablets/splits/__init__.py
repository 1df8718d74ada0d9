"""Splits of tablets in the simulation; `rk simulate --tablets --splits`.

records.py   a split in the store, and the regions of the simulated table
prepared.py  prepared daughters on a simulated disk: the real copy and its checks
servers.py   orders on servers: prepare, seal, make a daughter's replica
master.py    a small master that takes splits from step to step, and cancels some
clients.py   clients that follow their keys into the daughters
story.py     faults of splits, and the work that must be finished at the end
"""
