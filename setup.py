"""Compiles the store's pure modules with mypyc, where that is possible; setup.cfg says everything else.

Without a compiler, without mypy, or with RK_PURE set, the installation is the same but runs those modules interpreted;
one line says so. `coord/compiled.py` says which modules they are and which form runs.
"""

import os
import runpy
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
COMPILED = runpy.run_path(str(ROOT / "coord" / "compiled.py"))


class BuildStore(build_ext):
    """Compiles when the build gets there, not each time that metadata is asked for; its failure is not the build's."""

    def run(self):
        """Compile, then stamp what was compiled."""
        stamp = COMPILED["stamp_path"](ROOT if self.inplace else Path(self.build_lib))
        fingerprint = COMPILED["fingerprint"](ROOT)
        if self.inplace and COMPILED["is_current"](stamp.parent):
            self._take([])
            return
        try:
            self._take(extensions())
            stamp.unlink(missing_ok=True)
            super().run()
            stamp.parent.mkdir(parents=True, exist_ok=True)
            stamp.write_text(fingerprint)
        except (Exception, SystemExit) as error:  # the named boundary: whatever it is, the sources run as they are
            self._take([])
            sys.stderr.write(f"RegionKeeper: the store runs interpreted, it was not compiled: {str(error)[:100]}\n")

    def _take(self, found):
        """Go on with these extensions as if they had been named from the beginning."""
        given = {name: getattr(self, name) for name in ("inplace", "editable_mode", "build_lib", "build_temp")}
        self.distribution.ext_modules = found
        self.initialize_options()
        vars(self).update(given)
        self.finalize_options()
        self.extensions = found


def extensions():
    """What mypyc makes of the sources. Raise ImportError without mypy, SystemExit when it refuses them."""
    if os.environ.get(COMPILED["PURE_VARIABLE"]):
        raise ImportError("RK_PURE is set")
    from mypyc.build import mypycify

    options = ["--config-file=", "--ignore-missing-imports"]
    found = mypycify([*options, *COMPILED["SOURCES"]], group_name=COMPILED["GROUP"], opt_level="1", debug_level="0")
    for extension in found:
        # mypyc asks for -Werror; a compiler with a new kind of warning is no reason to run interpreted.
        extension.extra_compile_args.append("-Wno-error")
    return found


# The one extension named here stands for those that mypyc will name.
setup(ext_modules=[Extension(COMPILED["GROUP"], [])], cmdclass={"build_ext": BuildStore})
