"""Import the modules that `rk` processes need, for `tests.support.forked`. A test checks that no import starts a thread
or opens a reactor, which a fork would share."""

from __future__ import annotations

import gc
from importlib import import_module
from typing import Final

from cli.main import ENTRIES

#: Modules that daemons import after reading their options.
DAEMONS: Final = ("coord.server.service", "master.service", "regionserver.service")
#: Modules that bring Spark, or that tests rarely start.
_LEFT_OUT: Final = {"simulate", "up"}

for _entry in ENTRIES:
    if _entry.name not in _LEFT_OUT:
        import_module(_entry.target.partition(":")[0])
for _name in DAEMONS:
    import_module(_name)
# Otherwise a garbage collection in a fork would write to every shared page.
gc.collect()
gc.freeze()
