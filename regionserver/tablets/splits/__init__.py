"""Splits of tablets on their servers (docs/tablets.md, "Splits of tablets").

heirs.py  the rows of a daughter, made from those of its sealed parent
work.py   orders to seal a tablet and to make a daughter's replica
"""
