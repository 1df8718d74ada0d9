"""The offline check of the pinned packages for known vulnerabilities."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from tests.support.advisories import main, pins

LOCK = "some-package==2.0.1 \\\n    --hash=sha256:00\nother==1.0\n"


def advisory(number: int, *events: dict[str, str], **more: object) -> dict[str, object]:
    """Return a document about `Some_Package`."""
    affected = {"package": {"ecosystem": "PyPI", "name": "Some_Package"}} | (
        {"ranges": [{"type": "ECOSYSTEM", "events": list(events)}]} if events else {}
    )
    return {"id": f"X-{number}", "summary": "bad", "affected": [affected | more.pop("affected", {})], **more}  # type: ignore[dict-item]


def test_a_lock_has_pins_and_hashes() -> None:
    """Names are compared in their canonical form."""
    assert pins(LOCK) == {"some-package": "2.0.1", "other": "1.0"}


@pytest.mark.parametrize(
    ("document", "is_found"),
    [
        (advisory(1, {"introduced": "0"}, {"fixed": "2.0.2"}), True),
        (advisory(2, {"introduced": "0"}, {"fixed": "2.0.1"}), False),
        (advisory(3, {"introduced": "0"}, {"fixed": "1.0"}, {"introduced": "2.0"}, {"last_affected": "2.0.1"}), True),
        (advisory(4, {"introduced": "0"}, {"last_affected": "2.0.0"}), False),
        (advisory(5, affected={"versions": ["2.0.1"]}), True),
        (advisory(6, {"introduced": "0"}, withdrawn="2026-01-01"), False),
        (advisory(7, {"introduced": "0"}, affected={"package": {"ecosystem": "npm", "name": "other"}}), False),
    ],
)
def test_a_version_in_a_range_is_found(tmp_path: Path, document: dict[str, object], is_found: bool) -> None:
    """Ranges as OSV defines them: by events, in order. Fails if `_is_in_range` ignores `fixed`."""
    lock, archive = tmp_path / "lock", tmp_path / "all.zip"
    lock.write_text(LOCK)
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("one.json", json.dumps(document))
    assert main([str(archive), str(lock)]) == int(is_found)


def test_another_file_is_no_archive(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An error page that was saved as the archive must not pass as "nothing is known"."""
    (tmp_path / "lock").write_text(LOCK)
    (tmp_path / "all.zip").write_text("<html>")
    assert main([str(tmp_path / "all.zip"), str(tmp_path / "lock")]) == 2
    assert "neither an archive" in capsys.readouterr().err
