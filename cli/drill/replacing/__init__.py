"""Drills after which tablets have other members: the effects of a loss, and the required replacements (losses.py)."""
