"""What the parts of a master process use of the process, whichever role it has."""

from __future__ import annotations

from typing import Any, Protocol

from master.active import ActiveMaster
from master.leadership.election import Election
from master.phases import Phases
from master.standby.watcher import StoreWatcher
from regions.cluster.limits import AssignerConfig
from regions.records.model import MasterRecord


class MasterProcess(Protocol):
    """One master, active or standby. `MasterService` is the real one; the API and the heartbeats use it."""

    #: None unless this master is active; and what watches the store while it is not.
    active_master: ActiveMaster | None
    watcher: StoreWatcher | None
    election: Election | None
    phases: Phases
    #: All live masters, and the cluster that they belong to.
    registered: list[MasterRecord]
    cluster_id: str

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
        """Which start of this master it is."""

    @property
    def limits(self) -> AssignerConfig:
        """Limits that the active master applies. A standby uses the same limits after a failover."""

    def now_ms(self) -> int:
        """Milliseconds of the monotonic clock."""

    def uptime_ms(self) -> int:
        """Milliseconds since this process began."""

    def token(self, size: int) -> bytes:
        """Return random bytes for names."""

    def caller(self) -> str:
        """Return the address that the request which is being dispatched came from."""

    def call_later(self, seconds: float, action: Any) -> Any:
        """Call `action` after `seconds`."""
