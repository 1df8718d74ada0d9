"""Tablets: regions whose replicas are stored on the servers' own disks; each tablet is one Raft group
(docs/tablets.md).

values/                    a client's write, its limits and its outcome; what a tablet stores of a writer
commands.py, writers.py    a log entry's payload; writes that happen exactly once
messages.py, service.py    requests of clients, their replies and limits
disk/                      one server's files: layout, superblock, consensus metadata, start-up table, deletion
rows/                      rows of one tablet: an LMDB file that follows the log, and its steady points
host/                      all groups of one server: events in, effects out, one turn at a time
process/                   the shell around host/: log thread, threads for rows, files, ticks, reports
links/                     connections with the other members' servers
offline/                   the tablets of a stopped server, for operators
members/                   changes of members
copying/                   copies of replicas from one server to another
digests/                   finds replicas that differ
splits/                    splits and merges of tablets
rescue/                    a tablet that has lost its majority for ever
upkeep/                    room on the disk, the quarantine of former replicas, rests of copies
hosting.py, server_tablets.py                the interface of all this to the region server's process
order_plans.py, orders.py, store_steps.py    orders of masters: stages of an order, its files, its transition's steps
neighbors.py, peer_port.py, metrics.py       addresses of other servers, the port for members, gauges

Pure parts decide; shells carry their effects out.
"""
