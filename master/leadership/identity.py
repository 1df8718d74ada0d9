"""Identity of a master: a uuid kept in its data directory, and a start code that is new at each start."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Final

import msgspec

from coord.env import read_file, replace_file
from coord.env_os import FolderLock, OsClock, OsDisk
from coord.errors import ConfigError

INSTANCE_FILE: Final = "instance.json"


class MasterInstanceRecord(msgspec.Struct, frozen=True):
    """Content of instance.json."""

    uuid: str
    kind: str = "master"


class MasterIdentity:
    """The uuid of the data directory and the start code of this process. Holds the directory's lock."""

    def __init__(self, data_dir: Path) -> None:
        """Raise ConfigError if another process uses the directory, or if it belongs to another kind of daemon."""
        disk = OsDisk(data_dir)
        try:
            disk.make_folder("")
            self._lock = FolderLock(data_dir)
        except BlockingIOError as error:
            raise ConfigError(f"data directory {data_dir} is in use by another process") from error
        except OSError as error:
            raise ConfigError(f"cannot use data directory {data_dir}: {error.strerror}") from error
        if INSTANCE_FILE in disk.names(""):
            self.uuid = _read(disk)
        else:
            self.uuid = uuid.uuid4().hex
            replace_file(disk, "", INSTANCE_FILE, msgspec.json.encode(MasterInstanceRecord(self.uuid)))
        self.start_code = OsClock().wall_ms()

    def release(self) -> None:
        """Release the directory's lock."""
        self._lock.release()


def _read(disk: OsDisk) -> str:
    try:
        record = msgspec.json.decode(read_file(disk, INSTANCE_FILE), type=MasterInstanceRecord)
    except ValueError as error:  # not JSON, not UTF-8, or other fields
        raise ConfigError(f"cannot read {disk.where(INSTANCE_FILE)}: {error}") from error
    if record.kind != "master":
        raise ConfigError(f"{disk.where(INSTANCE_FILE)} belongs to a {record.kind}, not to a master")
    return record.uuid
