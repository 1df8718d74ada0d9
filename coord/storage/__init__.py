"""The durable side of a store node: write-ahead log (`wal`), who syncs it (`writer`), snapshot files (`snapshot`).

The grammars of the files are in the docstrings of `wal` and `snapshot`. What is promised:

- What `Wal.write` has returned for survives a power cut; what it has not returned for may survive or not, never half.
- A torn tail is cut at the start and said in a warning. A damaged record that was durable is told with file and
  offset. The one exception: damage in the very last record looks like a torn write and is cut; the entries come back
  from the leader, who has them, since a majority does.
- A failed sync is never repeated: the node stops. A full disk is waited for.
- The log is pruned only behind the oldest snapshot kept, so that a damaged newest one can be done without.

The index, the term and the bytes of an entry are all that is known about it here; Raft is not imported.
"""
