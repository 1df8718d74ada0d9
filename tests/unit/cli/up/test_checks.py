"""Decisions of `rk up` before any daemon starts, and its output."""

from __future__ import annotations

import io
import queue
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from kazoo.exceptions import ConnectionLoss, SessionExpiredError
from rich.console import Console

from cli.common import output
from cli.common.errors import CliError, ExitStatus, UnreachableError, UsageFaultError
from cli.common.local import HOST, Shape, command_line, design
from cli.common.options import Globals
from cli.common.views.display import PlainDisplay
from cli.main import run
from cli.up.bringup import BringUp, _settled, _stage
from cli.up.command import _check_ports, suggestions
from cli.up.ports import holder, is_free
from cli.up.replicas import check_replicas, copies
from cli.up.shape import SPARK_MIN, shape_of, with_dead_s
from regions.messages import MasterStatus, PlanProgress
from regions.records.model import ServerRecord
from tests.support.helpers import free_ports


class Recorded(PlainDisplay):
    """Keeps the printed lines."""

    def __init__(self) -> None:
        super().__init__(Console(file=io.StringIO()))
        self.said: list[str] = []

    def say(self, text: str, **_fields: object) -> None:
        self.said.append(text)


class Waiting:
    """A start of which only the waits matter: each check takes five seconds of the test's own time."""

    def __init__(self, tmp_path: Path) -> None:
        self.time = 0.0
        self.looks = 0
        self.display = Recorded()
        nobody: Any = None
        local = design(asked(Globals()), tmp_path)
        self.bringup = BringUp(local, nobody, self.display, queue.Queue(), lambda: self.time)

    def look(self) -> int:
        self.time += 5.0
        self.looks += 1
        return self.looks


def test_a_busy_machine_is_waited_for(tmp_path: Path) -> None:
    """A store that opens no session for most of a minute, while its processes live, is not a reason to give up; the
    awaited event is printed."""
    waiting = Waiting(tmp_path)

    def session() -> str:
        if waiting.look() < 12:
            raise UnreachableError("gave no session")
        return "a session"

    assert waiting.bringup.surely(session, "the store opened no session") == "a session"
    assert len(waiting.display.said) >= 4
    assert "the store opened no session in 10 s (gave no session): still waiting" in waiting.display.said[0]


@pytest.mark.parametrize("error", [ConnectionLoss(), SessionExpiredError(), UnreachableError("nobody")])
def test_what_does_not_come_at_all_is_given_up(tmp_path: Path, error: Exception) -> None:
    waiting = Waiting(tmp_path)

    def fails() -> None:
        waiting.look()
        raise error

    with pytest.raises(UnreachableError, match="no luck within 65 s") as given_up:
        waiting.bringup.surely(fails, "no luck")
    assert "logs" in given_up.value.hint
    assert waiting.looks == 13


def test_progress_is_waited_for_without_end(tmp_path: Path) -> None:
    """One more server every 50 s."""
    waiting = Waiting(tmp_path)

    def registered(_: object) -> bool:
        looks = waiting.look()
        waiting.bringup._come_to(looks // 10)
        return looks == 40

    waiting.bringup._until(registered, "the region servers did not register")
    assert waiting.time == 200.0


def test_problems_name_servers_as_the_operator_does(tmp_path: Path) -> None:
    """A registered server, one that has recorded its uuid and does not run, and one that nobody knows."""
    waiting = Waiting(tmp_path)
    server_1, server_2 = waiting.bringup._local.servers[:2]
    port = int(server_1.address.rpartition(":")[2])
    ids = [f"{number}d5c4b3a-0000-4000-8000-00000000000{number}" for number in range(3)]
    directory = Path(server_2.data_dir)
    directory.mkdir(parents=True)
    (directory / "instance.json").write_text(f'{{"uuid": "{ids[1]}"}}')
    cluster: Any = SimpleNamespace(servers=lambda: [ServerRecord(ids[0], HOST, port, 1)])
    waiting.bringup.show_problems(cluster, [f"tablet a is UNDER_REPLICATED: {one} has no disk" for one in ids])
    assert [one.split()[4] for one in waiting.display.said] == ["server-1", "server-2", "2d5c4b3a"]


def test_problems_of_the_last_moment_are_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower that has not answered its leader yet is not news; a problem that lasts is."""
    waiting = Waiting(tmp_path)
    nobody: Any = None
    answers = [status(problems=["one"]), status(problems=[])]
    monkeypatch.setattr("cli.up.bringup.cluster_status", lambda _: answers.pop(0))
    assert waiting.bringup._lasting_problems(nobody) == []
    assert not answers

    def lasts(_: object) -> MasterStatus:
        waiting.look()
        return status(problems=["one"])

    monkeypatch.setattr("cli.up.bringup.cluster_status", lasts)
    assert waiting.bringup._lasting_problems(nobody) == ["one"]


def asked(given: Globals, before: object = None, **options: object) -> Shape:
    """Return the shape of an `rk up` with these options."""
    names = ("store_nodes", "masters", "servers", "racks", "base_port", "plan_engine")
    spark = options.get("spark", (None, (), None))
    limits = options.get("limits", (None, None, None))
    return shape_of(given, before, *(options.get(name) for name in names), spark=spark, limits=limits)  # type: ignore[arg-type]


def test_first_start_takes_the_defaults() -> None:
    """Three store nodes, two masters, four servers."""
    shape = asked(Globals())
    assert (shape.store_nodes, shape.masters, shape.servers, shape.base_port) == (3, 2, 4, 21800)


@pytest.mark.parametrize(
    ("options", "engine", "spark_min"),
    [
        ({}, "auto", SPARK_MIN),
        ({"plan_engine": "spark"}, "spark", 0),
        ({"plan_engine": "auto"}, "auto", 0),
        ({"spark": ("spark://a:7077", (), None)}, "spark", SPARK_MIN),
        ({"spark": (None, ("spark.cores.max=8",), None)}, "spark", SPARK_MIN),
        ({"spark": (None, (), 300.0)}, "auto", SPARK_MIN),
    ],
)
def test_a_first_start_needs_spark_for_large_plans_or_where_it_is_asked_for(
    options: dict[str, object], engine: str, spark_min: int, tmp_path: Path
) -> None:
    """A newcomer's 40 regions wait for no JVM.

    Tried: with `spark` as the engine of every first start, and without --spark-min, the first case fails.
    """
    shape = asked(Globals(), **options)
    assert (shape.plan_engine, shape.spark_min) == (engine, spark_min)
    here = design(shape, tmp_path)
    words = " ".join(command_line(here.masters[0], here, shape))
    assert f"--plan-engine {engine}" in words
    assert (f"--spark-min {SPARK_MIN}" in words) == bool(spark_min)


@pytest.mark.parametrize("option", ["store_nodes", "masters", "servers", "racks", "base_port"])
def test_none_of_something_is_refused(tmp_path: Path, option: str) -> None:
    """`--servers 0` is a value like any other, not a request for the default."""
    with pytest.raises(UsageFaultError, match=f"--{option.replace('_', '-')} 0"):
        design(asked(Globals(), **{option: 0}), tmp_path)


def test_a_name_that_no_table_may_have_is_refused_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["up", "--table", "a/b", "--data-dir", str(tmp_path / "new")]) == ExitStatus.USAGE
    assert "table name 'a/b'" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_next_start_keeps_the_shape(tmp_path: Path) -> None:
    """Options that are not given keep their values; a placed cluster needs no Spark for a few regions."""
    before = design(asked(Globals(), servers=7, racks=3, base_port=25000), tmp_path)
    before.has_been_up = True
    shape = asked(Globals(), before, masters=3)
    assert (shape.servers, shape.racks, shape.base_port, shape.masters) == (7, 3, 25000, 3)
    assert (shape.plan_engine, shape.spark_min) == ("auto", 0)


def test_masters_are_told_where_spark_is_and_the_next_start_remembers(tmp_path: Path) -> None:
    """Address, settings and deadline are part of the shape; without them masters use their defaults."""
    here = design(asked(Globals()), tmp_path)
    assert "--spark-master" not in command_line(here.masters[0], here, asked(Globals()))
    shape = asked(Globals(), spark=("spark://a:7077", ("spark.executor.memory=4g", "spark.cores.max=8"), 300.0))
    before = design(shape, tmp_path)
    words = " ".join(command_line(before.masters[0], before, shape))
    assert "--spark-master spark://a:7077 --plan-deadline-s 300 --spark-conf spark.executor.memory=4g" in words
    assert "--spark-conf spark.cores.max=8" in words
    again = asked(Globals(), before)
    assert (again.spark_master, again.spark_conf) == ("spark://a:7077", shape.spark_conf)
    assert again.plan_deadline_s == 300
    assert asked(Globals(), before, spark=("yarn", (), None)).spark_master == "yarn"


def test_masters_are_told_the_bounds_of_making_regions_and_the_next_start_remembers(tmp_path: Path) -> None:
    """DD-03: 0 replacements is a value like any other; without the option the masters use their defaults."""
    here = design(asked(Globals()), tmp_path)
    assert "--replacements-max" not in command_line(here.masters[0], here, asked(Globals()))
    shape = asked(Globals(), limits=(7.5, 0, None))
    before = design(shape, tmp_path)
    words = " ".join(command_line(before.masters[0], before, shape))
    assert words.endswith("--create-timeout-s 7.5 --replacements-max 0")
    again = asked(Globals(), before)
    assert (again.create_timeout_s, again.replacements_max) == (7.5, 0)
    assert asked(Globals(), before, limits=(None, 2, None)).replacements_max == 2


def test_masters_get_the_time_for_which_rows_of_deleted_tables_are_kept(tmp_path: Path) -> None:
    """The next start remembers the time; 0 removes the rows at once."""
    before = design(asked(Globals(), limits=(None, None, 0)), tmp_path)
    words = command_line(before.masters[0], before, asked(Globals(), before))
    assert words[-2:] == ["--purge-after", "0ms"]
    assert asked(Globals(), before, limits=(None, None, 90_000)).purge_after_ms == 90_000
    here = design(asked(Globals()), tmp_path)
    assert "--purge-after" not in command_line(here.masters[0], here, asked(Globals(), here))


def test_servers_get_the_silence_after_which_members_are_replaced(tmp_path: Path) -> None:
    """The next start remembers it; without the option the servers have their default."""
    shape = with_dead_s(asked(Globals()), None, 5.0)
    before = design(shape, tmp_path)
    assert command_line(before.servers[0], before, shape)[-2:] == ["--replica-dead-s", "5"]
    assert "--replica-dead-s" not in command_line(before.masters[0], before, shape)
    assert with_dead_s(asked(Globals(), before), before, None).replica_dead_s == 5
    assert with_dead_s(asked(Globals(), before), before, 60.0).replica_dead_s == 60
    usual = with_dead_s(asked(Globals()), None, None)
    assert "--replica-dead-s" not in command_line(before.servers[0], before, usual)


def test_a_time_that_cannot_be_read_is_refused_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["up", "--purge-after", "soon", "--data-dir", str(tmp_path / "new")]) == ExitStatus.USAGE
    assert "--purge-after 'soon' is not a duration" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_store_of_a_directory_cannot_change_its_size(tmp_path: Path) -> None:
    """The logs of its nodes have three members."""
    before = design(asked(Globals()), tmp_path)
    with pytest.raises(UsageFaultError, match="has 3 nodes"):
        asked(Globals(), before, store_nodes=5)
    outside = Globals()
    outside.store = "zk://somewhere:2181"
    with pytest.raises(UsageFaultError, match="has 3 nodes"):
        asked(outside, before)


def test_outside_store_is_remembered(tmp_path: Path) -> None:
    """The next start needs no --store."""
    outside = Globals()
    outside.store = "zk://somewhere:2181"
    before = design(asked(outside), tmp_path)
    assert asked(Globals(), before).outside_store == "somewhere:2181"


def test_taken_port_names_its_holder(tmp_path: Path) -> None:
    """The holder is this process."""
    base = 30000
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert not is_free(HOST, port)
        found = holder(port)
        assert found is not None
        assert "python" in found[1]
        local = design(asked(Globals(), base_port=base), tmp_path)
        local.masters[0].address = f"{HOST}:{port}"
        for daemon in local.coord:
            daemon.address = daemon.peer = daemon.admin = ""
        with pytest.raises(CliError, match=f"port {port} is in use by pid .*; master-1 needs it as its RPC port"):
            _check_ports(local)
    assert is_free(HOST, free_ports(1)[0])


def test_suggestions_can_be_pasted(tmp_path: Path) -> None:
    """They name the data directory, quoted, unless it is the default."""
    odd = suggestions(tmp_path / "my data", has_regions=True, own_store=False)
    assert all(f"--data-dir '{tmp_path}/my data'" in command for command, _ in odd)
    assert not any("store-leader" in command for command, _ in odd)
    assert any(
        "'my table:python3'" in tip
        for tip, _ in suggestions(tmp_path, has_regions=True, own_store=True, table="my table")
    )
    assert not any(
        "packages" in tip for tip, _ in suggestions(tmp_path, has_regions=True, own_store=True, table="")[:3]
    )
    plain = suggestions(Path("./rk-data").absolute(), has_regions=True, own_store=True)
    assert any(command.endswith("drill store-leader") for command, _ in plain)


def test_suggestions_fit_tablets(tmp_path: Path) -> None:
    """Tablets cannot be moved: the suggestions show them, and kill a leader."""
    tips = [command for command, _ in suggestions(tmp_path, has_regions=True, own_store=True, is_replicated=True)]
    assert not any("region move" in one for one in tips)
    assert any("tablet show packages:python3" in one for one in tips)
    assert any("drill tablet-leader-kill" in one for one in tips)


def test_replicas_fit_the_cluster(tmp_path: Path) -> None:
    """Each replica needs a server, their number is odd, and only key-value regions have several."""
    three = Shape(3, 2, 3, 1, 21800, None, "/regionkeeper", "greedy")
    for replicas in (1, 3):
        check_replicas(replicas, three)
    with pytest.raises(UsageFaultError, match="--replicas 5: each replica needs a server of its own"):
        check_replicas(5, three)
    with pytest.raises(UsageFaultError, match="odd number of replicas"):
        check_replicas(2, three)
    with pytest.raises(UsageFaultError, match="regions of --opener none have one replica"):
        check_replicas(3, msgspec.structs.replace(three, opener="none"))


def test_a_table_has_three_replicas_where_that_is_possible() -> None:
    """The default table survives a dead server. With fewer servers or another opener it has one copy, and the reason is
    printed."""
    four = Shape(3, 2, 4, 1, 21800, None, "/regionkeeper", "greedy")
    assert copies(None, four) == (3, "")
    assert copies(None, msgspec.structs.replace(four, servers=3)) == (3, "")
    assert copies(None, msgspec.structs.replace(four, servers=2)) == (1, "3 replicas need 3 servers")
    replicas, why = copies(None, msgspec.structs.replace(four, opener="directories"))
    assert (replicas, why) == (1, "a region of --opener directories has one copy")
    assert copies(1, four) == (1, ""), "asked for: nothing to explain"


def test_invocation_is_what_the_user_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By name when it is on the PATH, else by path."""
    tool = tmp_path / "bin" / "rk"
    tool.parent.mkdir()
    tool.write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")
    assert output.invocation([str(tool)]) == "bin/rk"
    monkeypatch.setenv("PATH", str(tool.parent))
    assert output.invocation([str(tool)]) == "rk"
    assert output.invocation(["/x/cli/__main__.py"]).endswith(" -m cli")


def status(**changes: object) -> MasterStatus:
    """Return an active master with all of its ten regions open, with changes."""
    values: dict[str, object] = {
        "uuid": "m",
        "role": "active",
        "epoch": 1,
        "active": "",
        "path": "startup",
        "plan": None,
        "problems": [],
        "servers": 1,
        "masters": 1,
        "tables": 1,
        "regions": 10,
        "replicas": 10,
        "open": 10,
        "rit": 0,
        "parked": 0,
        "phases": [],
        "uptime_ms": 0,
    }
    return MasterStatus(**{**values, **changes})  # type: ignore[arg-type]


def test_start_is_over_when_every_region_is_open_or_parked() -> None:
    """The start is not over while a master loads or plans, or while a region is in transition."""
    assert _settled(status())
    assert _settled(status(open=9, parked=1, rit=1))
    assert not _settled(status(open=9, rit=1))
    assert not _settled(status(rit=1))
    assert not _settled(status(role="activating"))
    assert not _settled(status(plan=PlanProgress("p", "spark", "PLANNING", 10, 0)))


def test_plan_stage_counts_itself() -> None:
    """A job reports its number of stages; greedy does not."""
    assert _stage(PlanProgress("p", "spark", "PLANNING", 10, 0, "tables 3/7")) == ("spark: tables", 3, 7)
    assert _stage(PlanProgress("p", "greedy", "PLANNING", 10, 0, "greedy")) == ("greedy", 0, 0)
    assert _stage(None) == ("", 0, 0)


def test_plain_display_says_each_thing_once() -> None:
    """In a pipe: one line for each quarter, and the end of each phase with its seconds."""
    text = io.StringIO()
    display = PlainDisplay(Console(file=text, width=120))
    display.begin("open", "regions OPENED", 200)
    for done in range(0, 201, 10):
        display.update(done, 200)
    display.end("fine")
    lines = text.getvalue().splitlines()
    assert len(lines) == 5
    assert lines[-1].startswith("regions OPENED: ")
    assert lines[-1].endswith("(fine)")
    assert [phase.name for phase in display.phases] == ["open"]


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (604975275, "605 MB"), (1_535_845_016, "1.5 GB")]
)
def test_sizes_for_people(count: int, text: str) -> None:
    """Powers of a thousand, two digits."""
    assert output.size(count) == text


def test_ranges_and_durations_for_people() -> None:
    """Half-open; no bound is infinity."""
    assert output.key_range("", "b") == "[-∞, b)"
    assert output.key_range("a", "") == "[a, +∞)"
    assert (output.seconds(0.123), output.seconds(12.34)) == ("0.12 s", "12.3 s")
