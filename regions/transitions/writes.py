"""The effects and events of a master's writes below `/unassigned`, and of its reads there. Pure; compiled.

Each step of a transition makes several of these objects, and compiled modules read their fields dozens of times: those
of a compiled class several times as fast as those of a record. `effects.py` and `events.py` export these classes
together with the others.
"""

from __future__ import annotations

from mypy_extensions import mypyc_attr

from regions.records.model import RegionRecord, RegionState, TransitionRecord, WorkOrigin
from regions.records.replica_key import parse_replica_key
from regions.transitions.states import Cause


@mypyc_attr(acyclic=True)
class _Fields:  # noqa: PLW1641 - the fields may change
    """Fields that are compared and printed as those of a record."""

    __slots__ = ()

    def _fields(self) -> dict[str, object]:
        """Return the fields by name, in order."""
        return {}

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and isinstance(other, _Fields) and self._fields() == other._fields()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self._fields().items())})"


@mypyc_attr(acyclic=True)
class _Write(_Fields):
    """A write with the origin of the work that it belongs to (`regions.cluster.effects.Caused`)."""

    __slots__ = ("origin",)

    def __init__(self, origin: WorkOrigin | None) -> None:
        self.origin = origin

    @property
    def cause_id(self) -> str:
        """The id of the work's cause, "" without an origin."""
        return "" if self.origin is None else self.origin.cause_id


@mypyc_attr(acyclic=True)
class WriteOffline(_Write):
    """Create (`before` None) or set the transition to `record`, which is OFFLINE.

    The multi also checks `table_check` (table id, version), so that a region whose table was removed or disabled in the
    meantime gets no destination. `former` is the transition as it was read at `version`. Its steps go into the history
    with this one.
    `without_member` is the region's record, with its version, for a step that is legal only because the record does not
    have the member (`regions.transitions.states.RESTS_ON_MEMBERS`); the multi checks the version.
    """

    __slots__ = ("before", "cause", "former", "key", "record", "table_check", "version", "without_member")

    def __init__(
        self,
        key: str,
        record: TransitionRecord,
        before: RegionState | None,
        version: int,
        cause: Cause,
        table_check: tuple[str, int] | None = None,
        former: TransitionRecord | None = None,
        without_member: tuple[RegionRecord, int] | None = None,
        *,
        origin: WorkOrigin | None = None,
    ) -> None:
        super().__init__(origin)
        self.key = key
        self.record = record
        self.before = before
        self.version = version
        self.cause = cause
        self.table_check = table_check
        self.former = former
        self.without_member = without_member

    def _fields(self) -> dict[str, object]:
        return {
            "key": self.key,
            "record": self.record,
            "before": self.before,
            "version": self.version,
            "cause": self.cause,
            "table_check": self.table_check,
            "former": self.former,
            "without_member": self.without_member,
            "origin": self.origin,
        }


@mypyc_attr(acyclic=True)
class DeleteTransition(_Write):
    """Delete the transition at `version`.

    The multi also checks `table_check` (table id, version), if the table's intent makes the step legal (X3). It writes
    the region's record `region` at `region_version`, if set. `former` and `without_member` are as in `WriteOffline`.
    """

    __slots__ = (
        "before",
        "cause",
        "former",
        "key",
        "region",
        "region_id",
        "region_version",
        "replica",
        "table_check",
        "version",
        "without_member",
    )

    def __init__(
        self,
        key: str,
        region_id: str,
        replica: int,
        before: RegionState,
        version: int,
        cause: Cause,
        table_check: tuple[str, int] | None = None,
        region: RegionRecord | None = None,
        region_version: int = -1,
        former: TransitionRecord | None = None,
        without_member: tuple[RegionRecord, int] | None = None,
        *,
        origin: WorkOrigin | None = None,
    ) -> None:
        super().__init__(origin)
        self.key = key
        self.region_id = region_id
        self.replica = replica
        self.before = before
        self.version = version
        self.cause = cause
        self.table_check = table_check
        self.region = region
        self.region_version = region_version
        self.former = former
        self.without_member = without_member

    def _fields(self) -> dict[str, object]:
        return {
            "key": self.key,
            "region_id": self.region_id,
            "replica": self.replica,
            "before": self.before,
            "version": self.version,
            "cause": self.cause,
            "table_check": self.table_check,
            "region": self.region,
            "region_version": self.region_version,
            "former": self.former,
            "without_member": self.without_member,
            "origin": self.origin,
        }


@mypyc_attr(acyclic=True)
class WriteDone(_Fields):
    """The write for replica `key` has committed. `version` is the znode's new version, meaningless for a delete."""

    __slots__ = ("key", "version")

    def __init__(self, key: str, version: int = 0) -> None:
        self.key = key
        self.version = version

    def _fields(self) -> dict[str, object]:
        return {"key": self.key, "version": self.version}


@mypyc_attr(acyclic=True)
class WriteFailed(_Fields):
    """The store has refused the write for replica `key`, because the znode has another version.

    If `table_version` is set, the check of the table's record at that version has failed instead.
    """

    __slots__ = ("key", "table_version")

    def __init__(self, key: str, table_version: int | None = None) -> None:
        self.key = key
        self.table_version = table_version

    def _fields(self) -> dict[str, object]:
        return {"key": self.key, "table_version": self.table_version}


@mypyc_attr(acyclic=True)
class TransitionRead(_Fields):
    """The transition of replica `key` was read. `record` is None if the znode does not exist."""

    __slots__ = ("key", "record", "version")

    def __init__(self, key: str, record: TransitionRecord | None, version: int) -> None:
        self.key = key
        self.record = record
        self.version = version

    @property
    def region_id(self) -> str:
        """The region's id."""
        return parse_replica_key(self.key)[0]

    @property
    def replica(self) -> int:
        """The replica's number."""
        return parse_replica_key(self.key)[1]

    def _fields(self) -> dict[str, object]:
        return {"key": self.key, "record": self.record, "version": self.version}


__all__ = ["DeleteTransition", "TransitionRead", "WriteDone", "WriteFailed", "WriteOffline"]
