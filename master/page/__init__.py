"""The live page of a master, on its admin port: read-only, for people (`docs/page.md`).

    site.py        requests below `/` and `/ui/`: files, data, the stream; refused requests
    feed.py        follows the master's cluster state and sends the changes to all listeners, in bounded turns
    hiding.py      names in place of keys, with --admin-hide-keys
    listeners.py   one browser on the stream, and its bounds
    figures.py     the message of each second: verdict, counts, servers
    views.py       data that a view reads when it is opened: one region, tables, plans, runs, drills, alarms
    transitions.py replicas in transition, in the requested order and page by page
    store_nodes.py the store nodes' own figures
    assets/        HTML, CSS and JavaScript modules, served as they are
    contacts.py    asks the other masters whose heartbeats they receive
    assembly.py    puts the page of one master together

The pure part is `regions/page`.
"""
