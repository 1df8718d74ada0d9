"""The rows of one tablet: an LMDB file behind the log, and the states to which it can be set back.

errors.py        what can be wrong with a tablet's rows, and what the server does then
steady.py        steady points: format, and when the next one is due (pure)
state.py         applied index, digest, clock and counts, stored in each commit (pure)
environment.py   the file: making, opening, restoring after another boot, checks; the doors to the disk
tablet_rows.py   TabletRows: commands applied, rows read, steady points made
self_test.py     checks at start that this LMDB keeps the pages of a pinned state
"""
