"""The rows of one tablet: an LMDB file that follows the log, and the states to which the file can be reset.

errors.py        errors of a tablet's rows, and the server's reaction
steady.py        steady points: format, and time of the next one (pure)
state.py         applied index, digest, clock and counts, stored in each commit (pure)
environment.py   the file: making, opening, restoring after a reboot, checks; the interface to the disk
tablet_rows.py   TabletRows: commands applied, rows read, steady points made
hot_copy.py      a state of the file sent to another server, and a received file adopted
received.py      a file that arrives from another server: written, synced, read back, checked
leaf_sums.py     the rows of a file that arrives in chunks, page by page: checksums and digests (pure)
round.py         the entries of one commit: changed rows and outcomes (pure)
sealed/          the seal of a tablet that is split or merged
self_test.py     checks at start that this LMDB keeps the pages of a pinned state
digest.py        the digest of all rows (pure)
marks.py         digests at chosen entries, to compare replicas
"""
