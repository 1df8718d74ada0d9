"""Authorization in a master.

checking.py   the check of every request, in every role
granting.py   the requests about grants
"""
