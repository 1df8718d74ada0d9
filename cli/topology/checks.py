"""Checks of single keys of a topology file, and the errors, which name file, table, key and remedy. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, NoReturn

import msgspec

#: Names of clusters become names of directories and of units.
NAME: Final = re.compile(r"[a-z][a-z0-9-]{0,39}")
#: Host names, IPv4 and IPv6 addresses.
HOST: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?|[0-9A-Fa-f:]{2,45}")
RACK: Final = re.compile(r"[A-Za-z0-9._/-]{1,64}")
#: Characters that would need another form in command lines, units or lists of addresses.
PATH: Final = re.compile(r"[A-Za-z0-9._/+@-]{1,512}")
PORT_MIN: Final = 1024
PORT_MAX: Final = 65535


class TopologyError(ValueError):
    """A topology file that cannot be used. `hint` says what to do."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class DaemonOption(msgspec.Struct, frozen=True):
    """An option of `rk coord|master|server run` that a topology may set."""

    #: Returns why a value is wrong, "" for a right one.
    objection: Callable[[object], str]
    is_flag: bool = False
    #: The option for "no", such as `--no-tablets`; "" if there is none.
    negative: str = ""
    is_list: bool = False


class FileTable:
    """One table of the file. Its keys are taken one by one, and a remaining key is refused."""

    def __init__(self, file: str, where: str, values: object, known: Collection[str]) -> None:
        """`where`: the table as the file writes it, such as `[servers]`; "" for the top."""
        self.file = file
        self.where = where
        if not isinstance(values, dict):
            raise TopologyError(f"{file}: {where} is {_shown(values)}, not a table", f"Write it as {where}.")
        self.values: dict[str, Any] = values
        for key in self.values:
            if key not in known:
                self._refuse_unknown(key, known)

    def _refuse_unknown(self, key: str, known: Collection[str]) -> NoReturn:
        close = difflib.get_close_matches(key, list(known), 1)
        usual = f"Known keys: {', '.join(known)}."
        self.refuse(key, "is not known", f"Did you mean {close[0]!r}? {usual}" if close else usual)

    def refuse(self, key: str, why: str, hint: str = "") -> NoReturn:
        """Raise TopologyError about a key of this table."""
        raise TopologyError(f"{self.file}: {self.where}{' ' if self.where else ''}{key} {why}", hint)

    def has(self, key: str) -> bool:
        """Return whether the file has this key."""
        return key in self.values

    def number(self, key: str, least: int, most: int, usual: int) -> int:
        """Return a whole number within its limits."""
        value = self.values.get(key, usual)
        if not isinstance(value, int) or isinstance(value, bool):
            self.refuse(key, f"is {_shown(value)}, not a whole number", f"Write {key} = {usual or least}.")
        if key in self.values and not least <= value <= most:
            self.refuse(key, f"is {value}, outside {least} to {most}", f"Give {least} to {most}.")
        return value

    def text(self, key: str, pattern: re.Pattern[str], what: str, usual: str = "") -> str:
        """Return a text of the given form; `what` describes the form."""
        value = self.values.get(key, usual)
        if not isinstance(value, str) or (key in self.values and not pattern.fullmatch(value)):
            self.refuse(key, f"is {_shown(value)}, not {what}", f"Write {key} as {what}.")
        return value

    def choice(self, key: str, choices: Collection[str], usual: str) -> str:
        """Return one of some words."""
        value = self.values.get(key, usual)
        if value not in choices:
            self.refuse(key, f"is {_shown(value)}", f"Give one of: {', '.join(choices)}.")
        return str(value)

    def port(self, key: str, usual: int) -> int:
        """Return a port that needs no privileges; `usual` if the file names none."""
        return self.number(key, PORT_MIN, PORT_MAX, usual)

    def numbers(self, key: str) -> tuple[int, ...]:
        """Return a list of whole numbers."""
        value = self.values.get(key, [])
        if not isinstance(value, list) or not all(type(one) is int for one in value):
            self.refuse(key, f"is {_shown(value)}, not a list of numbers", f"Write {key} = [4, 5].")
        return tuple(value)

    def tables(self, key: str) -> list[object]:
        """Return the tables of an array `[[…]]`."""
        value = self.values.get(key, [])
        if not isinstance(value, list):
            name = self.where.strip("[]")
            self.refuse(key, f"is {_shown(value)}, not a list of tables", f"Write [[{name}.{key}]] above each.")
        return value


def option_words(
    file: str, where: str, values: object, known: Mapping[str, DaemonOption], taken: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the words of a command line for a table of options.

    `taken` maps the options that follow from the rest of the topology to their keys there. Raise TopologyError.
    """
    if isinstance(values, dict):
        for key in sorted(values.keys() & taken.keys()):
            raise TopologyError(f"{file}: {where} {key} follows from the topology", taken[key])
    table = FileTable(file, where, values, known)
    words: list[str] = []
    for key, value in table.values.items():
        words += _words(table, key, value, known[key])
    return tuple(words)


def _words(table: FileTable, key: str, value: object, option: DaemonOption) -> list[str]:
    if option.is_flag:
        if not isinstance(value, bool):
            table.refuse(key, f"is {_shown(value)}, not true or false", f"Write {key} = true.")
        if value:
            return [f"--{key}"]
        return [option.negative] if option.negative else []
    parts = value if option.is_list and isinstance(value, list) else [value]
    words: list[str] = []
    for part in parts:
        if isinstance(part, bool) or not isinstance(part, str | int | float):
            table.refuse(key, f"is {_shown(value)}, not one value", f'Write {key} = "…" or a number.')
        if "\n" in str(part) or not str(part).isprintable():
            table.refuse(key, "has characters that are not printable", "Write it on one line.")
        objection = option.objection(part)
        if objection:
            table.refuse(key, f"is wrong: {objection}", "`rk coord|master|server run --help` describes the options.")
        words += [f"--{key}", str(part)]
    return words


def _shown(value: object) -> str:
    shown = {True: "true", False: "false"}.get(value) if isinstance(value, bool) else None
    return shown or (f'"{value}"' if isinstance(value, str) else "a table" if isinstance(value, dict) else repr(value))
