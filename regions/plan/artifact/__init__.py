"""A plan as an artifact: written, read, verified, compared, explained.

files.py        snapshots and plans as files
digest.py       the digest of a plan; fingerprint.py that of its input
verify.py       judge any plan by the rules alone
compare.py      two plans; figures.py the figures of one
binding.py      which rule kept a replica from a better server
"""
