"""Commands about the past, from the store alone.

history.py  `rk history`: lists, `--replay`, `--owner`
state.py    `rk state`: the whole cluster at a time or zxid
replay.py   the entries between two points, and the servers that have held a region
runs.py     `rk runs`: durations of startups, failovers and bulk assignments
last_check.py keeps the result of the last `rk fsck`

`cli/diagnose/history.py` reads the history and prints its lines; other commands use it, too.
"""
