"""How far a cluster is: the active master's figures, with its tablets counted as regions."""

from __future__ import annotations

from typing import Final

import msgspec

from cli.common.connect import Cluster
from regions import messages
from regions.records.model import TableIntent
from regions.transitions.table_states import VISIBLE

#: Time limit of each of the two requests to the master.
STATUS_TIMEOUT_S: Final = 5.0


def cluster_status(cluster: Cluster, timeout_s: float = STATUS_TIMEOUT_S) -> messages.MasterStatus:
    """Return the figures of the active master. Raise CliError.

    The master's own figures count shared regions. Here the replicas of tablets count as well, and a tablet that clients
    cannot use yet counts as in transition.
    """
    found = cluster.ask_master(messages.GetMasterStatus(), messages.MasterStatus, timeout_s=timeout_s)
    if found.role != "active":
        return found
    listed = cluster.ask_master(messages.ListTables(), messages.Tables, timeout_s=timeout_s).tables
    return with_tablets(found, listed)


def with_tablets(found: messages.MasterStatus, tables: list[messages.TableSummary]) -> messages.MasterStatus:
    """Return the figures with the tablets of enabled tables added. Pure."""
    enabled = [one for one in tables if one.table.intent is TableIntent.ENABLED and one.table.state in VISIBLE]
    tablets = [one for one in enabled if one.table.is_tablet]
    unusable = sum(max(0, one.table.regions - max(0, one.running)) for one in tablets)
    return msgspec.structs.replace(
        found,
        replicas=found.replicas + sum(one.replicas for one in tablets),
        open=found.open + sum(one.open for one in tablets),
        parked=found.parked + sum(one.parked for one in tablets),
        rit=found.rit + unusable,
    )


def open_words(found: messages.MasterStatus) -> str:
    """Return what is open: regions, or replicas if some regions have several."""
    if found.replicas == found.regions:
        return f"{found.open} regions"
    return f"{found.open} replicas of {found.regions} regions"
