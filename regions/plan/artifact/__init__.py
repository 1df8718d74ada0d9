"""Plans as artifacts: writing, reading, verifying, comparing and explaining them.

files.py        snapshots and plans as files
digest.py       digest of a plan
fingerprint.py  digest of a plan's input
verify.py       checks any plan against the rules
compare.py      compares two plans
figures.py      figures of one plan
binding.py      which rule kept a replica from a better server
"""
