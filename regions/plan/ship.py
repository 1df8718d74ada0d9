"""Packs the planner's modules into one archive for Spark's executors, which have NumPy, pyarrow and OR-tools only.

`python -m regions.plan.ship FILE.zip` writes the archive for `spark-submit --py-files`. A job with remote executors
sends the archive by itself. The archive has the package `regions.plan` and its few dependencies, and nothing of the
store, the masters or the servers. The same sources give the same bytes.
"""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path
from typing import Final

NAME: Final = "regionkeeper-plan.zip"
#: Earliest date of a zip entry. The time of packing is not part of the content.
_LONG_AGO: Final = (1980, 1, 1, 0, 0, 0)


def source_root() -> Path | None:
    """Return the directory with the sources, or None if this module was loaded from an archive."""
    root = Path(__file__).resolve().parents[2]
    return root if root.is_dir() else None


def contents(root: Path) -> dict[str, bytes]:
    """Return the files of the archive by name."""
    # The real coord/__init__.py chooses between compiled and plain modules. The planner needs these two.
    found = {"coord/__init__.py": b""}
    for name in ("coord/errors.py", "coord/hosts.py"):
        found[name] = (root / name).read_bytes()
    found["regions/__init__.py"] = (root / "regions" / "__init__.py").read_bytes()
    for path in sorted((root / "regions" / "plan").rglob("*.py")):
        found[path.relative_to(root).as_posix()] = path.read_bytes()
    return found


def write_archive(path: Path) -> None:
    """Write the archive. Raise OSError, or RuntimeError if the sources are in an archive themselves."""
    root = source_root()
    if root is None:
        raise RuntimeError("RegionKeeper itself runs from an archive: send that archive")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in contents(root).items():
            archive.writestr(zipfile.ZipInfo(name, _LONG_AGO), data, zipfile.ZIP_DEFLATED)


def main(arguments: list[str]) -> int:
    """`python -m regions.plan.ship FILE.zip`."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print(f"usage: python -m regions.plan.ship {NAME}", file=sys.stderr)  # noqa: T201
        return 2
    try:
        write_archive(Path(arguments[0]))
    except (OSError, RuntimeError) as error:
        print(f"cannot write {arguments[0]}: {error}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
