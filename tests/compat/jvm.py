"""Our Java programs: compiled with the jars that pyspark ships, run with the official ZooKeeper client and Curator."""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import subprocess
import tempfile
from pathlib import Path

SOURCES = Path(__file__).parent / "java"
#: Ignored by git; one folder in it for each version of the sources.
BUILD = Path(__file__).parents[2] / "build" / "compat"

#: Of pyspark's three hundred jars, those that ZooKeeper (client, server, command line) and Curator load.
_JARS = (
    "audience-annotations",
    "commons-cli",
    "commons-io",
    "curator-",
    "failureaccess",
    "guava",
    "log4j-api-2",
    "log4j-core-2",
    "log4j-slf4j2-impl",
    "metrics-core",
    "netty-",
    "slf4j-api",
    "snappy-java",
    "zookeeper-",
)


def missing() -> str:
    """Return why Java programs cannot be run here; empty if they can."""
    for program in ("java", "javac"):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    return "" if jars_folder() else "pyspark, whose jars are needed, is not installed"


def jars_folder() -> Path | None:
    """Return pyspark's folder of jars."""
    spec = importlib.util.find_spec("pyspark")
    places = list(spec.submodule_search_locations or []) if spec else []
    return next((Path(place, "jars") for place in places if Path(place, "jars").is_dir()), None)


def class_path() -> str:
    """Return the class path of ZooKeeper, Curator and their dependencies."""
    folder = jars_folder()
    assert folder is not None, missing()
    return ":".join(str(jar) for jar in sorted(folder.glob("*.jar")) if jar.name.startswith(_JARS))


def java(*arguments: str, heap_mb: int = 256) -> list[str]:
    """Return a command line of a small virtual machine; `arguments` are its options, the class and the class's
    arguments."""
    return ["java", f"-Xmx{heap_mb}m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", *arguments]


def compiled() -> Path:
    """Return the folder with our compiled classes. Compile them if their sources have changed."""
    sources = sorted(SOURCES.glob("*.java"))
    state = hashlib.sha256(class_path().encode())
    for source in sources:
        state.update(source.name.encode() + b"\0" + source.read_bytes())
    folder = BUILD / state.hexdigest()[:16]
    if not folder.exists():
        BUILD.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=BUILD) as made:
            command = ["javac", "-J-Xmx256m", "-proc:none", "-nowarn", "-d", made, "-cp", class_path()]
            subprocess.run([*command, *map(str, sources)], check=True)
            shutil.copytree(made, folder)
    return folder
