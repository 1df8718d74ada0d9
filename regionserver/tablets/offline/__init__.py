"""The tablets of a stopped server, for operators: `rk debug tablet`. Read-only.

directory.py   superblocks, consensus metadata and the log; the decisions of a start
rows.py        the rows of one tablet
steady_points.py    state of rows according to their steady points, without opening them
identity.py    gives the directory a new identity
"""
