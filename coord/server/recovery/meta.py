"""META, the file that says whose data directory this is: node, cluster and first members.

JSON, so that people can read it. `check` is the CRC32C of the other fields except `format`. Without it, a damaged digit
could give the node another cluster, or other voters, whose majority is not the store's. Files without `check` are
accepted. Older builds ignore the field, and keep it if they raise the format after a downgrade.
"""

from __future__ import annotations

import json
from typing import Any, Final

from crc32c import crc32c

from coord.raft.membership import Configuration, decode_configuration

META: Final = "meta.json"
META_FORMAT: Final = 1
#: META_FORMAT of a directory whose log has a feature level. Builds without feature levels refuse to start on it.
META_FORMAT_WITH_LEVEL: Final = 2
CHECK: Final = "check"


class MetaError(ValueError):
    """META does not parse, its checksum does not match, or a field is missing or has another type."""


def encode_meta(
    node_id: int,
    cluster: bytes,
    voters: list[int],
    *,
    learners: list[int] | None = None,
    began: bytes = b"",
    level: int = 0,
) -> bytes:
    """Return the content of META.

    `began` is the configuration that a node found when it joined; it replaces `voters` and `learners`. `level` is the
    feature level of the state in the directory.
    """
    made_format = META_FORMAT_WITH_LEVEL if level else META_FORMAT
    made: dict[str, Any] = {"format": made_format, "node_id": node_id, "cluster": cluster.hex(), "voters": voters}
    if learners:
        made["learners"] = learners
    if began:
        made["configuration"] = began.hex()
    return _sealed(made)


def with_level(data: bytes) -> bytes:
    """Return META in the format that builds without feature levels reject. Raise MetaError."""
    return _sealed({**decode_meta(data), "format": META_FORMAT_WITH_LEVEL})


def decode_meta(data: bytes) -> dict[str, Any]:
    """Return the fields of META without the check. Raise MetaError. The format may be a newer one."""
    try:
        found = json.loads(data)
        if not isinstance(found, dict):
            raise MetaError("not a JSON object")
        check = found.pop(CHECK, None)
        if check is not None and check != _check(found):
            raise MetaError("its checksum does not match")
        if found["format"] in (META_FORMAT, META_FORMAT_WITH_LEVEL):
            int(found["node_id"]), bytes.fromhex(found["cluster"]), began_with(found)
    except KeyError as error:
        raise MetaError(f"field {error} is missing") from error
    except (TypeError, ValueError) as error:
        raise MetaError(str(error)) from error
    return found


def began_with(meta: dict[str, Any]) -> Configuration:
    """Return the members with which the directory began."""
    if "configuration" in meta:
        return decode_configuration(bytes.fromhex(meta["configuration"]))
    return Configuration([int(voter) for voter in meta["voters"]], [], meta.get("learners"))


def _sealed(fields: dict[str, Any]) -> bytes:
    return json.dumps({**fields, CHECK: _check(fields)}, indent=1).encode() + b"\n"


def _check(fields: dict[str, Any]) -> str:
    kept = {name: value for name, value in fields.items() if name != "format"}
    return f"{crc32c(json.dumps(kept, sort_keys=True).encode()):08x}"
