"""The durable side of a store node: the write-ahead log and snapshot files.

records.py   the log's records as bytes, and the batch that becomes one record (pure)
reading.py   segments, torn tails, damage, and the contents of a log
segments.py  appending records to a log of segments, whatever they hold
wal.py       the log of a store node, open for appending
shared/      the log that all Raft groups of a region server share
writer.py    the thread that writes and syncs a log
extent.py    the least length of the log, kept outside of it
covered.py   reading past damage that a snapshot covers, and replacing it
snapshot.py  snapshot files
backup.py    the file of a backup

Guarantees:

- A batch for which `Wal.write` has returned survives a power cut. Any other batch survives whole or not at all.
- A torn tail is cut when the log is opened, with a warning. A damaged record that was durable raises CorruptRecord with
  file and offset. One exception: damage in the last record looks like a torn write if the power fails before the seal
  after that record is on the disk. A majority has the entries of that record, and the leader sends them again.
- A failed sync is never retried: the node stops. A write to a full disk is retried.
- The log is pruned only up to the oldest snapshot kept, so that a node survives damage to the newest one.

This package knows only index, term and bytes of an entry. It does not import Raft.
"""
