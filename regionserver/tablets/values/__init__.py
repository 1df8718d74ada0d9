"""Plain values of a tablet's writes. Their modules are apart from the code that uses them, which is compiled.

operations.py  a write of a client, its limits, and its outcome
results.py     what a tablet stores of a writer
seals.py       the seal of a tablet that is split or merged, and what an entry about it changes
"""
