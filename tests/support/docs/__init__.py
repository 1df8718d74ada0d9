"""Pages of the documentation that are generated: `make docs` writes them, and a test compares them with their sources.

source.py      comments, defaults and types of settings and records, read from the source text
reference.py   znodes, limits, options of the commands, configuration of the daemons
diagrams.py    Mermaid diagrams of the tables of states and of the packages
walks.py       which modules five operations pass through, from recorded calls of a simulated cluster
pages.py       which page comes from what
"""
