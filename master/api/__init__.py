"""RPC requests to a master.

roles.py      the roles that answer each request (a table)
requests.py   dispatch, and changes, which only the active master performs
reads.py      reads, from the state of the active master or from a standby's mirror
prepared.py   what reads take from all regions, computed in steps
staleness.py  the permitted age of the reply to a read
tablets.py    tablets, from the keeper and the reports
members.py    changes of tablets' members
retirement.py progress of intents about members
balancing.py  the balancer's switch, a round now, a report
unsticking.py steps of `rk unstick`, and their undo
recording.py  operators' requests in the history
pacing.py     answers about all regions in transition, for callers that poll
resharding/   requests to split and merge regions
"""
