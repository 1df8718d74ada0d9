"""Splits and merges of tablets on their servers (docs/splits.md, "Tablets").

heirs.py      the rows of a daughter, made from those of its sealed parents
prepared.py   the same, begun while the parents are served: at the seal few rows are left
preparing.py  orders to prepare daughters, and the fate of the prepared files
refusals.py   refusals of a sealed tablet, which wait for the daughters
work.py       orders to seal a tablet and to make a daughter's replica
"""
