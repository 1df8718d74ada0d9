"""The cluster that a drill breaks or observes.

cluster.py      one cluster and one reactor for any number of drills
"""
