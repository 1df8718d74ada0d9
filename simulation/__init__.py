"""Whole clusters in simulated time: the real masters and region servers, everything around them decided by one seed.

run.py          a run from its options to its verdict; the file by which another person repeats it
drills.py       what happens: a named drill, or a part of everything
world.py        a cluster and its history: built, troubled, healed, asked whether it recovered
observer.py     what must hold after every commit; world.py adds who serves what
faults.py       what goes wrong; operator.py: what people ask for meanwhile
machines.py     masters and servers on simulated machines; region_work.py: openers and their threads
store.py        nodes that serve the real protocol from the real state machine, without Raft
network.py      streams of bytes; timeline.py: events, processes, clocks; chance.py: the seed

from simulation.run import Options, run
verdict = run(Options(seed=7, drill="server-freeze"))
"""
