"""Drills: kill a part of a running cluster, measure what was unavailable and how long, check what must always hold."""
