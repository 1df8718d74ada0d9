"""Legal steps, as tables.

states.py        the table of legal steps: writer, state before and after, cause
table_states.py  the same for tables and for region records
next_action.py   next step of a transition after the death of a server or a master
observed.py      transitions as a watcher sees them, and checks of their order
hazards.py       regions that are parked because they may kill servers or are damaged
purging.py       deleted tables until their rows are removed
steps.py         a step of a server or master, and the entries of the history that it writes
entries.py       an entry of the history, and its place in the store
resharding.py    the steps of splits and merges
writes.py        writes of a transition and their outcomes, as the assigner and its caller exchange them
trail.py         steps of servers, kept in the transition's znode for the history
diagrams.py      the pages of the documentation that are generated from these tables
"""
