"""The Spark job as a file for `spark-submit`, which cannot run packages.

    spark-submit --master spark://HOST:7077 regions/plan/submit.py --input DIR --output DIR

If the driver runs in the cluster (`--deploy-mode cluster`), only this file is sent; the packages come with
`--py-files regionkeeper-plan.zip` (regions/plan/ship.py).
"""

import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent


def _find_packages() -> None:
    """Put the directory of `regions` on the path, and remove this file's directory from it."""
    sys.path[:] = [entry for entry in sys.path if not entry or Path(entry).resolve() != _HERE]
    root = _HERE.parent.parent
    if (root / "regions" / "plan" / "spark_job.py").is_file():
        sys.path.insert(0, str(root))


if __name__ == "__main__":
    _find_packages()
    from regions.plan.spark_job import main

    sys.exit(main(sys.argv[1:]))
