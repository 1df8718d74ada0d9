"""The drill that restores a backup into an empty cluster: the scenario, and the write log of acknowledged writes."""
