"""The node's interfaces for operators and monitoring.

four_letter.py  ZooKeeper's four-letter words
http.py         metrics, health, readiness and status on the admin port
commands.py     ZooKeeper's AdminServer commands
backup.py       POST /backup
trace_file.py   the node's Raft trace as JSON lines
metrics.py      the node's metrics, read at each scrape
readiness.py    whether the node would commit a write now
"""
