"""A topology file with one daemon more; comments and order stay. Pure."""

from __future__ import annotations

from typing import Any

import tomlkit
from tomlkit.items import AoT, Table

from cli.topology.model import STORE, USUAL_COUNT


def with_daemon(text: str, kind: str, number: int, rack: str = "") -> str:
    """Return a local topology's text with one daemon more of `kind`.

    `number` is its number, `rack` the rack of a region server. A list of nodes gets a table, a count grows by one. A
    store node is also listed as joined.
    """
    document = tomlkit.parse(text)
    table: Any = document.setdefault(kind, tomlkit.table())
    nodes = table.get("node")
    if nodes is None:
        table["count"] = int(table.get("count", USUAL_COUNT[kind])) + 1
    else:
        _append(table, nodes, number, rack)
    if kind == STORE:
        joined = [*table.get("joined", []), number]
        table["joined"] = sorted({int(one) for one in joined})
    return tomlkit.dumps(document)


def _append(table: Any, nodes: Any, number: int, rack: str) -> None:
    made: Table = tomlkit.table()
    made["number"] = number
    if rack:
        made["rack"] = rack
    if isinstance(nodes, AoT):
        nodes.append(made)
        return
    # An array of inline tables.
    inline = tomlkit.inline_table()
    inline.update(made)
    nodes.append(inline)
    table["node"] = nodes
