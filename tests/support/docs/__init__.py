"""Pages of the documentation that are generated: `make docs` writes them, and a test compares them with their sources.

source.py comments, defaults and types of settings and records, read from the source text reference.py znodes, limits,
options of the commands, configuration of the daemons diagrams.py Mermaid diagrams of the tables of states and of the
packages calls.py the recorder of calls walks.py the modules of five operations; run by hand, it writes a part of
docs/architecture.md exit_codes.py the page of exit statuses pages.py the generated pages and their sources
"""
