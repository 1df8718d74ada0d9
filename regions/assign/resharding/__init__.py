"""Splits and merges of regions.

daughters.py   the records of the regions that replace a split or two merged regions
objections.py  why a region cannot be split or merged now
book.py        the splits and merges under way, and what each needs next
"""
