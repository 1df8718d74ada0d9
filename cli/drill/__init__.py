"""`rk drill`: break a running cluster under load, measure, check the invariants.

command.py       the commands and their options
run.py           the common part of all drills: follow the cluster, kill, wait, restore
scenarios/       the drills, one module each
load.py          checked reads and writes of rows; traffic.py runs one load per table and combines the results
histories.py     clients that read, write, and compare and set rows of tablets, and the check of their histories
tablets.py       leaders, gaps and whole tablets
writers.py       writers of znodes, checked on every node
probes.py        requests that name the location of an earlier open
store_nodes.py   the store's nodes: the leader, and the nodes that serve
invariants.py    checks at rest, and checks of the history
report.py        the result of a drill, as a screen or as JSON
target/          the cluster that a drill breaks or observes
freezing/        the forecast of a pause of one process, and its effects
replacing/       how lost members of tablets must be replaced
restoring/       a backup restored into an empty cluster
records/         records of drills in the cluster
cleanup.py       the end of a drill's cleanup
"""
