"""RPC requests to a master.

roles.py      which role answers which request (a table)
requests.py   changes: the active master only
reads.py      reads, from whichever cluster state the master has
staleness.py  how old a standby's answer may be
"""
