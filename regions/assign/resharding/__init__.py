"""Splits and merges of regions.

daughters.py   the records of the regions that replace a split or two merged regions
objections.py  why a region cannot be split or merged now
automatic.py   which regions to split or merge by the settings of their tables
holes.py       holes in a key space, and the regions that close them
parents.py     the requirements of a split or merge on its parents; how shared regions meet them
tablets.py     how tablets meet them
alignment.py   moves that bring the members of two tablets to the same servers
book.py        the splits and merges under way, and the next step of each
"""
