"""Random splits and merges with kills, by real processes: `python -m tests.soak_splits --minutes 10` (`make
soak-splits`).

A store of three nodes, two masters and four region servers serve one table. Sixteen clients put, get and delete rows
of their own and note what was acknowledged (`clients.py`). Meanwhile regions are split at random keys and neighbors are
merged, two at a time, and masters and servers are killed with SIGKILL at random moments (`work.py`). Then the faults
end, and the soak checks:

- every acknowledged row is there with its last acknowledged value, and no other row;
- the key space was whole at every zxid, by a replay of a store node's whole log (`key_space.py`);
- `rk fsck` finds nothing, no split or merge is under way, and the directory of every replaced region is gone.

The same replay measures how long the keys of each split and merge were without an open region.
"""
