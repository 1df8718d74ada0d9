"""Heartbeats on the masters.

roster.py   servers whose heartbeats reach this master
reports.py  replicas that servers have reported, and contradictions with the catalog
"""
