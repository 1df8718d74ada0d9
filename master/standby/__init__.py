"""What every master does, active or not.

watcher.py  reads changed znodes in batches, for the mirror and the auditor
auditor.py  checks what all masters and servers write, and raises alarms
"""
