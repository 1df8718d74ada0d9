"""A node's trace of its Raft events, one JSON list per line (the events are defined in `coord.raft.trace`).

Each line is written in one call before its event has an effect outside the node. A killed process leaves all lines,
except perhaps a part of the last one. A node that restarts appends to its file.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from coord.errors import ConfigError
from coord.raft.core import RaftCore
from coord.raft.messages import Message, Ready
from coord.raft.trace import START, Event, Recorder, TraceModel, TraceViolation, started


class TraceFile:
    """Writes a node's Raft events to a file (a `Tracer`)."""

    def __init__(self, path: Path) -> None:
        """Open `path` for appending. Raise ConfigError."""
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError as error:
            raise ConfigError(f"--trace {path}: {error.strerror}") from error
        self._recorder = Recorder()
        # Terminates a partial line that a killed process may have left.
        self._start = b"\n"

    def begin(self, core: RaftCore, *, is_new: bool) -> None:
        """Record the start of the node; `is_new`: promises of an earlier node with this id are void."""
        self._write([started(core, is_new=is_new)])

    def ready(self, core: RaftCore, ready: Ready) -> None:
        """See `Tracer.ready`."""
        self._write(self._recorder.ready(core, ready))

    def sent(self, messages: list[Message]) -> None:
        """See `Tracer.sent`."""
        self._write(self._recorder.sent(messages))

    def _write(self, events: list[Event]) -> None:
        if events:
            text = "".join([json.dumps(event, separators=(",", ":")) + "\n" for event in events])
            start, self._start = self._start, b""
            os.write(self._fd, start + text.encode())


class TraceFaultError(Exception):
    """Raised for a line that violates a rule of Raft or is not an event."""

    def __init__(self, path: Path, line: int, text: str) -> None:
        super().__init__(f"{path}:{line}: {text}")
        self.path = path
        self.line = line
        self.text = text


def check_traces(paths: list[Path]) -> TraceModel:
    """Check the traces of all nodes of a store against the model. Raise TraceFaultError, OSError."""
    model = TraceModel()
    place = (paths[0], 0)
    try:
        for path in paths:
            node = 0
            torn: ValueError | None = None
            with path.open("rb") as file:
                for number, line in enumerate(file, 1):
                    if not line.strip():
                        continue
                    place = (path, number)
                    try:
                        event = json.loads(line)
                        if not isinstance(event, list) or not event:
                            raise ValueError("not an event")
                    except ValueError as error:
                        # A process was killed while it wrote the line; the next process begins with a start event.
                        torn = torn or error
                        continue
                    if event[0] == START:
                        node = int(event[1])
                    elif torn is not None:
                        raise torn
                    torn = None
                    model.take(node, event)
        model.finish()
    except TraceViolation as violation:
        raise TraceFaultError(*place, str(violation)) from violation
    except (ValueError, TypeError, IndexError, KeyError) as error:
        raise TraceFaultError(*place, f"not a line of a trace: {error}") from error
    return model
