"""Liveness: the servers whose heartbeats masters receive, and the search for the active master.

roster.py         servers whose heartbeats reach this master
reports.py        replicas that servers have reported, and contradictions with the catalog
leader_search.py  the next master to try, and the meaning of each reply
"""
