"""Regions as directories that servers share.

directory.py  a region's directory and its record
ownership.py  lock files with fencing tokens: one server per region
purging.py    removes the rows of a deleted table
resharding.py splits and merges of regions
"""
