"""The seal of a tablet that is split.

sealing.py  the seal in a file of rows, and what a sealed tablet answers
"""
