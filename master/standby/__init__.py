"""Work of every master, active or standby.

watcher.py  reads changed znodes in batches, for the mirror and the auditor
auditor.py  checks the writes of all masters and servers, and raises alarms
shortfall.py servers with fewer regions than the mirror has
"""
