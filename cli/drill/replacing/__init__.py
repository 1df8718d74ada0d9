"""Drills after which tablets have other members: what a loss costs, and how members must be replaced (losses.py)."""
