"""Plain values of a tablet's writes, in modules separate from the code that uses them, because that code is compiled.

operations.py  a write of a client, its limits, and its outcome
results.py     results that a tablet stores for a writer
seals.py       the seal of a tablet that is split or merged, and what an entry about it changes
"""
