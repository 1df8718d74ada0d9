"""The seal of a tablet that is split or merged.

sealing.py  the seal in a file of rows, and the answers of a sealed tablet
notes.py    the keys that are written while the daughters are prepared
"""
