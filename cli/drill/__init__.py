"""`rk drill`: break a running cluster under load, measure, check the invariants.

command.py       the commands and their options
run.py           what every drill does: follow the cluster, kill, wait, put back
scenarios/       the drills, one module each
load.py          reads and writes of rows, checked; traffic.py runs one load per table and sums up
writers.py       writers of znodes, checked on every node
probes.py        requests that name the location of an earlier open
store_nodes.py   the store's nodes: who leads, cutting one off
invariants.py    what must hold at rest, and in the history
report.py        what a drill found, as a screen or as JSON
"""
