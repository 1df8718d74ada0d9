"""What must hold in a simulated cluster; whoever breaks a rule ends the run.

observer.py    after every commit of the store: legal steps, fencing, owners
record.py      the recorded history equals the store's own log
standbys.py    claims of standby masters against the truth
crowding.py    new regions are spread over the servers (DD-10)
"""
