"""Import what `rk` processes need, for `tests.support.forked`; a test checks that nothing here starts a thread or opens
a reactor, which a fork would share."""

from __future__ import annotations

import gc
from importlib import import_module
from typing import Final

from cli.main import ENTRIES

#: What daemons import once they know their options.
DAEMONS: Final = ("coord.server.service", "master.service", "regionserver.service")
#: They bring Spark, or nothing that a test starts often.
_LEFT_OUT: Final = {"simulate", "up"}

for _entry in ENTRIES:
    if _entry.name not in _LEFT_OUT:
        import_module(_entry.target.partition(":")[0])
for _name in DAEMONS:
    import_module(_name)
# Collections in a fork would otherwise write to every page that it shares with the others.
gc.collect()
gc.freeze()
