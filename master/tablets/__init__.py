"""Tablets in the active master: the pure keeper (`regions/replication/keeper.py`) joined to store and servers.

keeping    feeds the keeper, and carries its effects out
reports    heartbeats' reports of tablets, a few per reactor turn
progress   when a request about a table of tablets has been carried out, and how far it is
"""
