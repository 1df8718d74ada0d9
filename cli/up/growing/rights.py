"""What the masters and region servers of `rk up` prove to the store, as variables of their environment."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

from kazoo.exceptions import KazooException

from cli.common.access import open_store, store_access
from cli.common.errors import CliError
from cli.common.local import (
    MASTER,
    SERVER,
    SERVERS_FILE,
    SUPER_FILE,
    LocalCluster,
    make_servers_credential,
    make_super,
    servers_identity,
)
from cli.common.options import Globals, variable_of
from cli.up.supervisor import Rights
from coord.client.access import READERS, StoreAccess

#: Time for a look at a store that `rk up` does not run. The start itself waits longer for it.
_LOOK_S: Final = 3.0


def store_rights(given: Globals, local: LocalCluster, data_dir: Path) -> Rights:
    """Return the environment by which masters and servers of a secured cluster prove themselves to the store, and close
    their znodes: masters by the credential of the options, or by one that `rk up` makes, which its own store nodes take
    for super's. Region servers prove their own key, or in another store a credential of their own, and name the
    masters' identity.

    Users with a key may read the znodes, unless other readers are named. A store that `rk up` does not run knows no
    such users.
    """
    settings = given.settings()
    if not local.has_credentials:
        return {}
    if local.outside:
        make_servers_credential(data_dir)
    is_named = given.names_store_credential()
    readers = settings.get("store-readers", "" if local.outside or is_named else READERS)
    common = {variable_of("store-readers"): readers} if readers else {}
    common[variable_of("store-servers")] = settings.get("store-servers", "") or servers_identity(local, data_dir)
    masters = common if is_named else {**common, variable_of("store-auth"): f"@{data_dir / SUPER_FILE}"}
    if not is_named:
        make_super(data_dir)
    if not local.separate_servers:
        return {MASTER: masters, SERVER: masters}
    access = store_access(given) if is_named else StoreAccess(auth=make_super(data_dir))
    of_server = {**common, variable_of("store-masters"): access.identities()}
    # Variables of `rk up` itself reach all daemons: those of the masters' credential must not reach servers.
    of_server |= {variable_of(one): "" for one in ("store-auth", "store-sasl") if one in settings}
    if local.outside:
        of_server[variable_of("store-auth")] = f"@{data_dir / SERVERS_FILE}"
    return {MASTER: masters, SERVER: of_server}


def check_root(given: Globals, local: LocalCluster) -> None:
    """Separate the region servers of a new cluster in a store that `rk up` does not run if the store has no such
    cluster yet, whose access lists would not name the servers. The cluster's own credentials exist."""
    if not (local.secured and local.outside) or local.has_been_up or "store-servers" in given.settings():
        return
    with contextlib.suppress(CliError, KazooException), open_store(local.store, _LOOK_S, store_access(given)) as client:
        local.separate_servers = local.separate_servers or client.exists(local.root) is None
