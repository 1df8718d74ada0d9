"""`rk drill`: break a running cluster under load, measure, check the invariants.

command.py       the commands and their options
run.py           what every drill does: follow the cluster, kill, wait, restore
scenarios/       the drills, one module each
load.py          checked reads and writes of rows; traffic.py runs one load per table and combines the results
histories.py     clients that read, write, and compare and set rows of tablets, and the check of their histories
tablets.py       leaders, gaps and whole tablets
writers.py       writers of znodes, checked on every node
probes.py        requests that name the location of an earlier open
store_nodes.py   the store's nodes: finding the leader, cutting a node off
invariants.py    checks at rest, and checks of the history
report.py        the result of a drill, as a screen or as JSON
"""
