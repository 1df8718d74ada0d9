"""Records of the store: what exists, under which path, in which encoding.

model.py         servers, tables, regions and transitions
members.py       members of a tablet and the ids of its configurations
schema.py        columns of a table and how they may change
rows/            rows that follow a schema: keys and values of typed columns as text and bytes
partitioning.py  ranges and hash buckets
replica_key.py   the key of a replica, printed and parsed
kinds.py         kinds of service that an opener provides and a table requires
intents.py       what operators, planners and the balancer want of the members of a tablet
resharding/      the regions from which a region was made
acts/            records of operators' actions and requests: drills, grants, checks, splits, merges
alarms.py        alarms of the auditors
forgotten.py     ids of deleted tables, and which records are removed after a time
formats.py       the fields and requests that the processes of a cluster may rely on
znode_table.py   every znode: path, kind, record, writer, and the permissions of region servers
znodes.py        paths and encodings of every znode below the root

The structs that exist once or more for each region have `gc=False`, here and in events, effects and messages. They
contain only texts, numbers and each other, so they cannot be part of a cycle. The garbage collector does not visit
them, and each is 16 bytes smaller.
"""
