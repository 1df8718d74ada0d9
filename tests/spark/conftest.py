"""One standalone cluster for all tests, because its start takes ten seconds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spark.standalone import Standalone, spark_missing, standalone


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """Yield a Spark master and two workers as separate processes."""
    if spark_missing():
        pytest.skip(spark_missing())
    with standalone(tmp_path_factory.mktemp("spark")) as cluster:
        yield cluster


@pytest.fixture
def workers(spark: Standalone) -> Iterator[Standalone]:
    """Yield the same for a test that kills workers. All workers run again afterwards."""
    yield spark
    spark.mend()


@pytest.fixture(scope="session")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory that the tests share."""
    return tmp_path_factory.mktemp("work")
