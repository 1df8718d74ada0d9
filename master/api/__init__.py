"""RPC requests to a master.

roles.py      which role answers which request (a table)
requests.py   dispatch, and changes, which only the active master performs
reads.py      reads, from the state of the active master or from a standby's mirror
staleness.py  how old the reply to a read may be
tablets.py    tablets, as the keeper and the reports have them
members.py    changes of tablets' members
retirement.py how far intents about members are
balancing.py  the balancer's switch, a round now, a report
unsticking.py steps of `rk unstick`, and their undo
recording.py  operators' requests in the history
pacing.py     answers about all regions in transition, for callers that ask in a loop
resharding/   requests to split and merge regions
"""
