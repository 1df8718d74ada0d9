"""`rk why`: one region, table or process on one screen: its state, the process that must act next, and what would help.

    region.py    the command; regions with one owner
    unstick.py   `rk unstick` and its undo
    table.py     tables
    process.py   store nodes, masters and region servers, asked directly; needs no store

Tablets: `cli/tablets/why.py`.
"""
