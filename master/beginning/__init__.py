"""The beginning of a tenure.

content    the contents of the store, and whether the whole cluster starts
roll_call  the wait for the first heartbeats
slices     long work, a part in each turn
"""
