"""The interface of a master process that the API and the heartbeat receiver use in every role."""

from __future__ import annotations

from typing import Protocol

from coord.security.principal import Principal
from master.active import ActiveMaster
from master.leadership.election import Election
from master.phases import Phases
from master.standby.watcher import StoreWatcher
from regions import messages as ms
from regions.cluster.limits import AssignerConfig
from regions.records.model import MasterRecord


class Checks(Protocol):
    """The check of requests, as the API uses it (`master/access/checking.py`)."""

    def identity(self, who: Principal) -> ms.CallerIdentity:
        """Return the grants of a caller with this identity."""

    def refresh(self) -> None:
        """Read the grants now: this master has changed them."""


class MasterProcess(Protocol):
    """One master, active or standby. `MasterService` implements this protocol."""

    #: None unless this master is active or activating.
    active_master: ActiveMaster | None
    #: None before the first store session.
    watcher: StoreWatcher | None
    election: Election | None
    phases: Phases
    #: All live masters.
    registered: list[MasterRecord]
    #: "" until the cluster record has been read.
    cluster_id: str

    @property
    def checks(self) -> Checks | None:
        """None on an open cluster, where callers have no identity."""

    @property
    def role(self) -> str:
        """standby, activating or active."""

    @property
    def masters(self) -> int:
        """Number of live masters."""

    @property
    def uuid(self) -> str:
        """Persistent id of this master."""

    @property
    def address(self) -> str:
        """ "host:port" of this master."""

    @property
    def start_code(self) -> int:
        """Start code of this process."""

    @property
    def limits(self) -> AssignerConfig:
        """Limits that the active master applies. A standby uses the same limits after a failover."""

    def now_ms(self) -> int:
        """Milliseconds of the monotonic clock."""

    def uptime_ms(self) -> int:
        """Milliseconds since the start of this process."""

    def token(self, size: int) -> bytes:
        """Return random bytes for names."""

    def caller(self) -> str:
        """Return the sender's address of the request that is being dispatched."""

    def caller_principal(self) -> Principal:
        """Return the sender's proved identity, NOBODY on an open cluster."""
