"""Remedies for a stuck region (N11): `unstick.py` chooses one legal step, `undo.py` the way back."""
