"""The cluster that a drill breaks or observes.

cluster.py      one cluster and one reactor for any number of drills
moves.py        the times at which its regions were not open
processes.py    its processes: of `rk up`, or reached by the operator's commands
"""
