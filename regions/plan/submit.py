"""The Spark job as a file for `spark-submit`, which runs files and knows no packages.

    spark-submit --master spark://HOST:7077 regions/plan/submit.py --input DIR --output DIR

Where the driver itself runs in the cluster (`--deploy-mode cluster`) this file is alone; the rest comes with
`--py-files regionkeeper-plan.zip` (regions/plan/ship.py).
"""

import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent


def _find_packages() -> None:
    """Let `regions` be found beside this file, and the modules beside this file not be taken for others."""
    sys.path[:] = [entry for entry in sys.path if not entry or Path(entry).resolve() != _HERE]
    root = _HERE.parent.parent
    if (root / "regions" / "plan" / "spark_job.py").is_file():
        sys.path.insert(0, str(root))


if __name__ == "__main__":
    _find_packages()
    from regions.plan.spark_job import main

    sys.exit(main(sys.argv[1:]))
