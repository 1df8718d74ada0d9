"""Run kazoo's own test suite, from the installed package, against a three-node ensemble of our store.

    python -m tests.compat.kazoo_suite --python COMPAT_PYTHON [--against zookeeper] [--tls] [pytest arguments]

kazoo's harness starts, stops and restarts servers with `java … QuorumPeerMain zoo.cfg`. We put our own `java` first on
the PATH, which starts `rk coord run --config zoo.cfg` instead; the rest of the suite is unmodified. The system
properties of that command line (super digest, JAAS file, read-only mode) go into the configuration file, where
ZooKeeper reads them too. With `--tls` the suite's clients use the secure ports (`kazoo_tls`). With `--against
zookeeper` the same suite runs on Apache ZooKeeper from pyspark's jars, for comparison.
"""

from __future__ import annotations

import argparse
import glob
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]

#: Kerberos is not available on a test machine. The suite itself skips the other tests of it.
DESELECTED = ("test_sasl.py::TestSASLGSSAPIAuthentication",)

_JAVA = """#!{python}
import os, sys
arguments = sys.argv[1:]
config = arguments[-1]
known = open(config).read()
with open(config, "a") as file:
    for word in arguments:
        if not word.startswith("-D"):
            continue
        key, _, value = word[2:].partition("=")
        if key == "java.security.auth.login.config":
            key = "jaasConfig"
        elif key.startswith("zookeeper.DigestAuthenticationProvider"):
            key = key.removeprefix("zookeeper.")
        elif key != "readonlymode.enabled":
            continue
        if key + "=" not in known:
            file.write(f"{{key}}={{value}}\\n")
    if {is_tls} and "ssl.clientAuth=" not in known:
        file.write("ssl.clientAuth=none\\n")
os.chdir({root!r})
os.execv({python!r}, [{python!r}, "-m", "cli", "coord", "run", "--insecure", "--config", config])
"""


def jars() -> list[str]:
    """Return the jars of Apache ZooKeeper and its dependencies, as pyspark ships them."""
    import pyspark

    return sorted(glob.glob(str(Path(pyspark.__file__).parent / "jars" / "*.jar")))


def main() -> int:
    """Run the suite. Return pytest's exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="an interpreter that has kazoo and what its suite needs")
    parser.add_argument("--against", choices=("regionkeeper", "zookeeper"), default="regionkeeper")
    parser.add_argument("--tls", action="store_true", help="the suite's clients connect by TLS")
    options, rest = parser.parse_known_args()
    options.python = os.path.abspath(options.python)
    where = [options.python, "-c", "import os, kazoo.tests; print(os.path.dirname(kazoo.tests.__file__))"]
    suite = subprocess.run(where, check=True, capture_output=True, text=True).stdout.strip()
    with tempfile.TemporaryDirectory(prefix="rk-compat-") as work:
        env = {
            **os.environ,
            "ZOOKEEPER_VERSION": "3.9.5",
            "ZOOKEEPER_CLASSPATH": ":".join(jars()) if options.against == "zookeeper" else "none",
            "TMPDIR": work,
            "PYTHONWARNINGS": "ignore",
        }
        if options.against == "regionkeeper":
            shim = Path(work, "bin", "java")
            shim.parent.mkdir()
            shim.write_text(_JAVA.format(python=sys.executable, root=str(ROOT), is_tls=options.tls))
            shim.chmod(0o755)
            env["PATH"] = f"{shim.parent}:{env['PATH']}"
        command = [options.python, "-m", "pytest", "-p", "no:cacheprovider", "--timeout", "180", "-q", "-ra"]
        if options.tls:
            env["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *filter(None, [env.get("PYTHONPATH")])])
            command += ["-p", "kazoo_tls"]
        for name in DESELECTED:
            command += ["--deselect", f"{suite}/{name}"]
        selected = [
            word if os.path.isabs(word) or word.startswith("-") else f"{suite}/{word}"
            for word in rest
            if word.startswith("test_")
        ]
        others = [word for word in rest if not word.startswith("test_")]
        return subprocess.run([*command, *others, *(selected or [suite])], env=env, cwd=work, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
