"""Records of what operators have done to a cluster: drills (`drills.py`), steps of `rk unstick` (`undo.py`)."""
