"""The seal of a tablet that is split or merged.

sealing.py  the seal in a file of rows, and what a sealed tablet answers
notes.py    the keys that are written while the daughters are prepared
"""
