"""The regions from which a region was made. `regions/records/acts/resharding.py` has splits and merges under way.

parents.py  the parents of a region
names.py    the ids of daughters
"""
