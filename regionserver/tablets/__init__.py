"""Tablets: regions whose replicas lie on the servers' own disks, each tablet one Raft group (docs/tablets.md).

disk/    what lies on one server's disk: layout, superblock, consensus metadata, start-up table, deletion step by step
messages.py     requests of clients, their replies and limits
commands.py, writers.py    a log entry's payload, and what makes a write happen once
rows/    rows of one tablet: an LMDB file behind the log, set back to a steady point after a power cut
host/    all groups of one server: a turn at a time, events in, effects out
process/    the host in a process: log thread, rows' threads, files, reports
offline/    the tablets of a stopped server, for people

process/    the shell around host/: log thread, rows' threads, files, ticks
links/    connections with the other members' servers
hosting.py, server_tablets.py    what the region server's process sees of all that
order_plans.py, orders.py, store_steps.py    orders of masters: what they lead to, the files, the transitions' steps
messages.py, service.py    requests of clients
neighbors.py, peer_port.py, metrics.py    addresses of other servers, the port for members, gauges

Pure parts decide; shells carry their effects out.
"""
