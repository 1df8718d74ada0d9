"""Simulation of whole clusters in simulated time: real masters and region servers; one seed decides everything else.

run.py          one run, from its options to its verdict; the file that repeats the run
drills.py       the scenarios: named drills, and a random mix of faults
ddl_clients.py  clients that create, alter and delete tables; ddl_stress/: the model of the expected catalog
cluster/        machines, store, operator, faults
checks/         invariants that are checked after every commit and at the end
tablets/        hosts of tablets: replicas, copies, changes of members (`rk simulate --tablets`)
engine/         timeline, random numbers, processes and network; the simulations in tests/sim use them as well

from simulation.run import Options, run
verdict = run(Options(seed=7, drill="server-freeze"))
"""
