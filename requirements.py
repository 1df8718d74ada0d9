"""Print what setup.cfg requires, one requirement a line: `python requirements.py spark dev`.

The names are extras. The Makefile installs these packages while the hot modules are being compiled.
"""

import sys
from configparser import ConfigParser
from pathlib import Path


def required(extras: list[str]) -> list[str]:
    """Return the requirements of the package itself and of these extras."""
    config = ConfigParser()
    config.read(Path(__file__).with_name("setup.cfg"))
    lists = [config["options"]["install_requires"], *(config["options.extras_require"][extra] for extra in extras)]
    return [line for each in lists for line in each.split("\n") if line]


if __name__ == "__main__":
    sys.stdout.write("\n".join(required(sys.argv[1:])) + "\n")
