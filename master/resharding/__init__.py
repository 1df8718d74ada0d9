"""Splits and merges of regions in the active master: work.py carries out what the assigner decides about them."""
