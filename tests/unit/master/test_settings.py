"""Settings of a master from its command line: valid bounds, or one line that names the option."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from cli.common.names import Names
from cli.diagnose.status import master_lines
from coord.errors import ConfigError
from master.client import admin_address
from master.settings import MasterSettings, limits_of
from regions.cluster.limits import AssignerConfig
from regions.records.model import MasterRecord
from regions.records.znodes import decode_master, encode

USUAL: dict[str, Any] = {
    "start_timeout_s": 30.0,
    "open_timeout_s": 60.0,
    "attempts_max": 8,
    "close_timeout_s": 60.0,
    "fence_after_s": 300.0,
    "create_timeout_s": 60.0,
    "replacements_max": 3,
    "add_timeout_s": 600.0,
}


def test_the_defaults_of_the_command_line_are_those_of_the_assigner() -> None:
    """Both have one source of defaults."""
    assert limits_of(**USUAL) == AssignerConfig()


@pytest.mark.parametrize(
    ("admin_host", "page"),
    [("", "10.0.0.5"), ("10.0.0.5", "10.0.0.5"), ("0.0.0.0", "10.0.0.5"), ("127.0.0.1", "127.0.0.1")],
)
def test_the_registration_says_where_the_page_is(admin_host: str, page: str) -> None:
    """`rk status` and other masters' pages link it. Fails if `admin_address` takes the host of requests."""
    settings = MasterSettings(
        store="s:1", data_dir=Path("d"), host="10.0.0.5", port=7051, admin_host=admin_host, admin_port=8081
    )
    record = MasterRecord("m", settings.host, settings.port, 1, 8081, admin_host=settings.registered_admin_host)
    assert decode_master(encode(record)) == record
    (line,) = master_lines([record], None, Names([], None), None)
    assert line.page == f"http://{page}:8081/"
    former = decode_master(b'{"uuid":"m","host":"h","port":1,"start_code":1,"admin_port":2}')
    assert admin_address(former) == "h:2"


def test_bounds_of_making_regions() -> None:
    """DD-03: how long a region may be CREATING, and how often it may be replaced; 0: never."""
    found = limits_of(**{**USUAL, "create_timeout_s": 1.5, "replacements_max": 0, "add_timeout_s": 2.5})
    assert (found.create_timeout_ms, found.replacements_max, found.add_timeout_ms) == (1_500, 0, 2_500)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("start_timeout_s", 0.0),
        ("open_timeout_s", math.nan),
        ("close_timeout_s", math.inf),
        ("create_timeout_s", -1.0),
        ("create_timeout_s", math.nan),
        ("add_timeout_s", 0.0),
        ("add_timeout_s", math.inf),
        ("attempts_max", 0),
        ("replacements_max", -1),
        ("fence_after_s", 0.5),
        ("fence_after_s", math.nan),
        ("fence_after_s", math.inf),
    ],
)
def test_an_invalid_bound_is_rejected_by_its_option(name: str, value: float) -> None:
    """NaN is rejected as well."""
    with pytest.raises(ConfigError, match="--" + name.replace("_", "-")):
        limits_of(**{**USUAL, name: value})
