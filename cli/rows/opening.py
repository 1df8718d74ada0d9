"""A client of the cluster's regions for a command, with its errors as those of `rk`; options that commands share."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator
from typing import Final

import click
from kazoo.exceptions import KazooException

from cli.common.asking.refusals import forbidden
from cli.common.connect import open_cluster
from cli.common.errors import CliError, NotFoundError, UnreachableError, UsageFaultError
from cli.common.options import Globals
from cli.common.waiting import limit_s
from regions.records.rows.codec import RowError
from regionserver.client import (
    DataError,
    Forbidden,
    NoSuchTable,
    OutcomeUnknown,
    RegionClient,
    RegionLocator,
    TableDisabled,
    Unavailable,
)

#: Time limit of one request.
TIMEOUT_S: Final = 10.0

null_text = click.option("--null", default="", metavar="TEXT", help="CSV field that stands for null.  [default: empty]")


@contextlib.contextmanager
def open_regions(given: Globals, timeout_s: float) -> Iterator[RegionClient]:
    """Yield a client of the cluster's regions; its errors become one clear line. `timeout_s`: limit of a
    request if --timeout was not given."""
    with open_cluster(given) as cluster:
        client = RegionClient(RegionLocator(cluster.client, cluster.layout), timeout_s=limit_s(timeout_s))
        try:
            yield client
        except NoSuchTable as error:
            raise NotFoundError(str(error), "`rk table list` shows the tables.") from error
        except TableDisabled as error:
            maybe = " The change may have been made." if error.may_have_been_done else ""
            raise CliError(str(error), f"`rk table enable {shlex.quote(error.table)}` opens it.{maybe}") from error
        except Unavailable as error:
            maybe = " The change may have been made." if error.may_have_been_done else ""
            raise UnreachableError(str(error), f"`rk why TABLE:KEY` shows the reason.{maybe}") from error
        except RowError as error:
            raise UsageFaultError(str(error), "`rk table show TABLE` shows its columns.") from error
        except OutcomeUnknown as error:
            raise UnreachableError(str(error), "The change may have been made: read the row.") from error
        except Forbidden as error:
            raise forbidden(str(error)) from error
        except DataError as error:
            raise CliError(str(error)) from error
        except KazooException as error:
            raise UnreachableError(f"the store stopped answering ({type(error).__name__})", "Try again.") from error
        finally:
            client.close()
