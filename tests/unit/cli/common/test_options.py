"""Options with numbers: every command refuses what is no finite number, and what no timer can count."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest

from cli.main import rk
from cli.splits import SIZE_MAX, size_limits


def _numbers(command: click.Command, path: str) -> Iterator[tuple[str, click.Parameter]]:
    """Yield the parameters of a command and of those below it that take a number with a fraction."""
    for one in command.params:
        if isinstance(one.type, click.types.FloatParamType):
            yield f"{path} {one.opts[0]}", one
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from _numbers(below, f"{path} {name}")


def _takes(option: click.Parameter, text: str) -> bool:
    """Return whether an option accepts a value."""
    try:
        option.type.convert(text, option, None)
    except click.BadParameter:
        return False
    return True


def test_no_option_takes_what_is_not_a_finite_number() -> None:
    """Tried: with click's own FloatRange all options of seconds take `nan`."""
    found = list(_numbers(rk, "rk"))
    assert len(found) > 20
    for name, one in found:
        assert [text for text in ("nan", "inf", "-inf") if _takes(one, text)] == [], name


def test_a_wait_has_a_limit() -> None:
    """More seconds than a timer takes are refused before anything is asked of the cluster.

    Tried: with a limit of a billion seconds `rk get --timeout 10000000` ends with an OverflowError of `poll`.
    """
    waits = [(name, one) for name, one in _numbers(rk, "rk") if one.opts[0] in ("--wait", "--timeout")]
    assert len(waits) > 10
    assert [name for name, one in waits if _takes(one, f"{2**31 / 1000}")] == []


@pytest.mark.parametrize(("size", "taken"), [("1000000T", True), ("1000001T", False), (400 * "9", False)])
def test_a_size_has_a_limit(size: str, taken: bool) -> None:
    """Sizes at which regions are split fit into 64 bits."""

    @click.command()
    @size_limits
    def altered(split_above: int | None, merge_below: int | None) -> None:
        assert (split_above, merge_below) == (SIZE_MAX, None)

    try:
        altered.main(["--split-above", size], standalone_mode=False)
    except click.BadParameter:
        assert not taken
    else:
        assert taken
