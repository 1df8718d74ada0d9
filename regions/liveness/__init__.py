"""Who lives: servers as masters know them from heartbeats, and the active master as callers find it.

roster.py         servers whose heartbeats reach this master
reports.py        replicas that servers have reported, and contradictions with the catalog
leader_search.py  the next master to ask, and what each reply means
"""
