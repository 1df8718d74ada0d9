"""Which regions a region came from. `regions/records/acts/resharding.py` has splits and merges under way."""
