"""cli.up.control: messages about an `rk up` that does not answer."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from cli.common.errors import UnreachableError
from cli.common.local import LOCK_FILE
from cli.drill.cleanup import has_ended
from cli.up.control import ControlRequest, ask, listen


def test_a_suspended_supervisor_is_named(tmp_path: Path) -> None:
    """Its socket accepts the request. The supervisor runs, so no second one may start, and the drill's rows must not be
    given up."""
    with listen(tmp_path), subprocess.Popen(["sleep", "600"]) as process:
        try:
            process.send_signal(signal.SIGSTOP)
            os.waitpid(process.pid, os.WUNTRACED)
            (tmp_path / LOCK_FILE).write_text(f"{process.pid}\n")
            with pytest.raises(UnreachableError) as caught:
                ask(tmp_path, ControlRequest("list"))
            assert f"(pid {process.pid}) runs, but is suspended" in str(caught.value)
            assert f"kill -CONT {process.pid}" in caught.value.hint
            assert not has_ended(tmp_path)
        finally:
            process.kill()


def test_a_busy_supervisor_is_not_called_absent(tmp_path: Path) -> None:
    """Without a lock file, too."""
    with listen(tmp_path), pytest.raises(UnreachableError, match=r"runs, but did not answer within 0\.01 s"):
        ask(tmp_path, ControlRequest("list"), timeout_s=0.01)


def test_no_supervisor_at_all(tmp_path: Path) -> None:
    """The sentence names the directory, and no error of the system: there is none."""
    with pytest.raises(UnreachableError, match=rf"no `rk up` runs in {tmp_path}$"):
        ask(tmp_path, ControlRequest("list"))
