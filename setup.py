"""Compile the hot modules with mypyc where possible. setup.cfg has all other settings.

Without a compiler, without mypy, or with RK_PURE set, the installation runs those modules interpreted and prints one
line about it. `coord/compiled.py` lists the modules and says which form runs.

    pip wheel --no-deps .              a wheel for this Python and platform, with the compiled modules
    RK_PURE=1 pip wheel --no-deps .    a wheel for every Python and platform (py3-none-any), which runs interpreted

A tree whose modules are compiled in place for this Python gives them to the wheel; nothing is compiled again.
"""

import os
import runpy
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
COMPILED = runpy.run_path(str(ROOT / "coord" / "compiled.py"))


class BuildWithExamples(build_py):
    """Copy the examples, too: an installation has them below the package `cli` (cli/up/examples.py)."""

    def run(self):
        """Copy the modules and the data of the packages, then the examples."""
        super().run()
        if not self.editable_mode:
            shutil.copytree(
                ROOT / "examples",
                Path(self.build_lib, "cli", "examples"),
                dirs_exist_ok=True,
                ignore=shutil.ignore_patterns("__pycache__"),
            )


class BuildCompiled(build_ext):
    """Compile only when the build runs, not at each request for metadata. A failure here does not fail the build."""

    def run(self):
        """Compile, then stamp what was compiled."""
        stamp = COMPILED["stamp_path"](ROOT if self.inplace else Path(self.build_lib))
        fingerprint = COMPILED["fingerprint"](ROOT)
        if self.inplace and COMPILED["is_current"](stamp.parent):
            self._take([])
            return
        if not self.inplace and is_wanted() and COMPILED["is_current"](ROOT / "coord"):
            self._take([])
            for library in COMPILED["libraries"](ROOT):
                target = Path(self.build_lib, library.relative_to(ROOT))
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(library, target)
            return
        try:
            self._take(extensions())
            stamp.unlink(missing_ok=True)
            super().run()
            stamp.parent.mkdir(parents=True, exist_ok=True)
            stamp.write_text(fingerprint)
        except (Exception, SystemExit) as error:  # the named boundary: after any error the sources run interpreted
            self._take([])
            sys.stderr.write(f"RegionKeeper: everything runs interpreted, it was not compiled: {str(error)[:100]}\n")

    def build_extension(self, ext):
        """Compile the C files of one extension side by side, the largest first; distutils takes one after the other."""
        one_by_one = self.compiler.compile

        def side_by_side(sources, **options):
            ordered = sorted(sources, key=os.path.getsize, reverse=True)
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                made = pool.map(lambda source: one_by_one([source], **options), ordered)
                return [path for paths in made for path in paths]

        self.compiler.compile = side_by_side
        try:
            super().build_extension(ext)
        finally:
            self.compiler.compile = one_by_one

    def _take(self, found):
        """Set the extensions of the build and initialize the command again."""
        given = {name: getattr(self, name) for name in ("inplace", "editable_mode", "build_lib", "build_temp")}
        self.distribution.ext_modules = found
        self.initialize_options()
        vars(self).update(given)
        self.finalize_options()
        self.extensions = found


def is_wanted():
    """Return True unless RK_PURE asks for the interpreted form."""
    return not COMPILED["is_switched_on"](COMPILED["PURE_VARIABLE"])


def extensions():
    """What mypyc makes of the sources. Raise ImportError without mypy, SystemExit when it refuses them."""
    if not is_wanted():
        raise ImportError("RK_PURE is set")
    from mypyc.build import mypycify

    # Modules that the compiled ones import, and do not compile, are checked by `make lint`, with the plugin for zope.
    options = ["--config-file=", "--ignore-missing-imports", "--follow-imports=silent"]
    form = {"group_name": COMPILED["GROUP"], "multi_file": True, "opt_level": "1", "debug_level": "0"}
    found = mypycify([*options, *COMPILED["SOURCES"]], **form)
    for extension in found:
        # Where mypyc writes the headers of a group; its C files are one folder above.
        extension.include_dirs.append(str(Path("build", *COMPILED["GROUP"].split(".")[:-1])))
        # mypyc asks for -Werror; a compiler with a new kind of warning is not a reason to run interpreted.
        extension.extra_compile_args.append("-Wno-error")
    return found


# The one extension named here stands for those that mypyc will name; without any, a wheel is pure.
setup(
    ext_modules=[Extension(COMPILED["GROUP"], [])] if is_wanted() else [],
    cmdclass={"build_ext": BuildCompiled, "build_py": BuildWithExamples},
)
