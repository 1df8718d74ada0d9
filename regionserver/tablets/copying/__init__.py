"""Copies of replicas from one server to another. Read in this order:

messages.py       requests about copies, and their replies (pure)
guards.py         a server's checks of a StartTabletCopy before any change: a table (pure)
jobs.py           the copies that a server receives: states, bytes, limits (pure)
merge.py          the promises under which a copied replica starts (pure)
sessions.py       the copies that a server sends: one per member, bounded pins of the log, the rate (pure)
wire.py           the frames between destination and source (pure)
reactor_calls.py  calls between the threads of copies and the reactor's
source.py         the source: one thread for each connection
fetching.py       the destination's thread: rows, checks, log, superblock
work.py           the destination on the reactor's thread: requests, jobs, the replica before and after
asking.py         a leader's requests for copies
joined.py         makes these parts for a host

The steps on files are those of `disk/steps.py`.
"""
