"""Records of the store: what exists, under which path, in which encoding.

model.py         servers, tables, regions and transitions
members.py       members of a tablet and the ids of its configurations
schema.py        columns of a table and how they may change
rows/            rows that follow a schema: keys and values of typed columns as text and bytes
partitioning.py  ranges and hash buckets
replica_key.py   the key of a replica, printed and parsed
znodes.py        paths and encodings of every znode below the root
"""
