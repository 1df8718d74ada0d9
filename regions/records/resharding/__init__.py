"""Which regions a region came from. `regions/records/acts/resharding.py` has splits and merges under way.

parents.py  the parents of a region
names.py    the ids of daughters
"""
