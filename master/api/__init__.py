"""RPC requests to a master.

roles.py      which role answers which request (a table)
requests.py   dispatch, and changes, which only the active master performs
reads.py      reads, from the state of the active master or from a standby's mirror
staleness.py  how old the reply to a read may be
"""
