"""Splits and merges of regions in the active master: work.py carries out the assigner's decisions about them."""
