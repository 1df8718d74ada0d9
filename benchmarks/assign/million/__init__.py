"""A million regions on a thousand region servers: what each phase of a cluster's life takes.

servers.py   a process of many region servers
measures.py  processor, memory and turns of the daemons
lab.py       the cluster: a store, masters, that process
phases.py    what is measured, one phase after the other
report.py    tables and curves
"""
