"""Whole clusters in simulated time: the real masters and region servers, everything around them decided by one seed.

run.py          a run from its options to its verdict; the file by which another person repeats it
drills.py       what happens: a named drill, or a part of everything
storm.py        clients that create, alter and delete tables; ddl_stress/: the model that says what must become of it
cluster/        the machines, the store, the operator, the faults
checks/         what must hold after every commit and at the end
engine/         timeline, chance, processes and network; the simulations in tests/sim run on it, too

from simulation.run import Options, run
verdict = run(Options(seed=7, drill="server-freeze"))
"""
