from __future__ import annotations

from collections.abc import Iterator

import pytest

from regionserver.tablets.links import links
from tests.unit.regionserver.tablets.links.servers import Machine


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    # The tests send single frames, not ten a second as hosts do.
    monkeypatch.setattr(links, "SILENT_LOOKS", 1_000_000)
    made = Machine()
    yield made
    made.stop()
    assert not made.faults


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Yield the logged warnings about peers."""
    from regionserver.tablets.links import own_server

    logged: list[str] = []

    class Log:
        def warn(self, form: str, /, **fields: object) -> None:
            logged.append(form.format(**fields))

    monkeypatch.setattr(own_server, "log", Log())
    return logged
