"""Heartbeats as the masters read them.

roster.py   which servers a master hears
reports.py  what servers reported, and where a report contradicts the catalog
"""
