"""Legal steps, as tables.

states.py        THE TABLE: who may write which state over which, and why
table_states.py  the same for tables and for region records
next_action.py   what a transition needs next after a server's or a master's death
observed.py      transitions as a watcher sees them, and what may not happen in them
diagrams.py      the pages of the documentation that are generated from these tables
"""
