"""Authorization: what a caller with a proved identity may ask of masters and region servers. Pure.

    needs.py        the table: which role, on what, each request needs, and which daemons may send it
    grants.py       changes of the grants, and their rules
    permissions.py  the check of one process, against grants that are recent enough
    refusals.py     refused requests, summed up for log and history
    guard.py        one process: checks requests, sums up what it refuses

The grants are one znode (`regions/records/acts/grants.py`). A caller of an open cluster has no identity, and is not
checked.
"""
