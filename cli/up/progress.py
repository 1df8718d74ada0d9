"""Progress of a cluster's start, from the active master's figures."""

from __future__ import annotations

from typing import Final

import msgspec

from cli.common.connect import Cluster
from regions import messages

#: Time limit of the request to the master.
STATUS_TIMEOUT_S: Final = 5.0


def cluster_status(cluster: Cluster, timeout_s: float = STATUS_TIMEOUT_S) -> messages.MasterStatus:
    """Return the figures of the active master, as `rk up` and drills wait for them. Raise CliError."""
    found = cluster.ask_master(messages.GetMasterStatus(), messages.MasterStatus, timeout_s=timeout_s)
    return as_wanted(found)


def as_wanted(found: messages.MasterStatus) -> messages.MasterStatus:
    """Return the figures of the regions that should be open.

    While clients cannot use a tablet yet, the cluster is in transition, although the tablet's members may have no
    transition. A tablet with transitions counts only with these. A disabled table's closed replicas do not count.
    """
    rit = max(found.rit, found.unusable)
    return msgspec.structs.replace(found, rit=rit, replicas=found.replicas - found.resting)


def open_words(found: messages.MasterStatus) -> str:
    """Return the text for the number of open regions, or of open replicas if a region has several."""
    if found.replicas == found.regions:
        return f"{found.open} regions"
    return f"{found.open} replicas of {found.regions} regions"
