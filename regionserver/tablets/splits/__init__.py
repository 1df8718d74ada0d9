"""Splits of tablets on their servers (docs/tablets.md, "Splits of tablets").

heirs.py      the rows of a daughter, made from those of its sealed parent
prepared.py   the same, begun while the parent is served: at the seal few rows are left
preparing.py  orders to prepare daughters, and what becomes of the prepared files
refusals.py   refusals of a sealed tablet, which wait for the daughters
work.py       orders to seal a tablet and to make a daughter's replica
"""
