"""Certificates for tests, made by the openssl command: an authority and the certificates that it issues."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

_EC = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


class Authority:
    """A certificate authority in a folder. Without openssl the test is skipped."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        if shutil.which("openssl") is None:
            pytest.skip("no openssl command")
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.cert = folder / f"{name}.pem"
        self._key = folder / f"{name}.key"
        openssl("req", "-x509", *_EC, "-days", "2", "-subj", f"/CN={name}", "-keyout", self._key, "-out", self.cert)

    def issue(self, name: str, subject: str = "", hosts: str = "") -> tuple[Path, Path]:
        """Return (certificate, key) for `subject` (`/CN=…/O=…`) and `hosts` (`DNS:a,IP:127.0.0.1`), as files of that
        name."""
        cert, key, wish = (self.folder / f"{name}.{end}" for end in ("pem", "key", "csr"))
        openssl("req", "-new", *_EC, "-subj", subject or f"/CN={name}", "-utf8", "-keyout", key, "-out", wish)
        signed: tuple[object, ...] = ("-CA", self.cert, "-CAkey", self._key, "-CAcreateserial", "-days", "2")
        if hosts:
            extension = self.folder / f"{name}.ext"
            extension.write_text(f"subjectAltName={hosts}\n")
            signed += ("-extfile", extension)
        openssl("x509", "-req", "-in", wish, *signed, "-out", cert)
        return cert, key


def openssl(*words: object) -> None:
    """Run the command. Fail with its output."""
    done = subprocess.run(["openssl", *map(str, words)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
