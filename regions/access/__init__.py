"""Authorization: the requests that a caller with a proved identity may send to masters and region servers. Pure.

    needs.py        the table: the role that each request needs, and the daemons that may send the request
    grants.py       changes of the grants, and their rules
    permissions.py  the check of one process, against grants that are recent enough
    refusals.py     refused requests, summed up for log and history
    guard.py        one process: checks requests, sums up refusals

The grants are one znode (`regions/records/acts/grants.py`). A caller of an open cluster has no identity, and is not
checked.
"""
