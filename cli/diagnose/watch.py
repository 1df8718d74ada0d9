"""`rk watch`: one line for each step of a transition as it happens; `--json` prints one JSON object per line."""

from __future__ import annotations

import sys
from collections import deque
from contextlib import ExitStack, suppress
from typing import Any, Final, NamedTuple

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text
from twisted.internet.defer import ensureDeferred
from twisted.internet.error import ReactorNotRunning
from twisted.python.failure import Failure

from cli.common import output
from cli.common.connect import Cluster, open_cluster
from cli.common.errors import CliError, UnreachableError, UsageFaultError
from cli.common.lookup import table_of
from cli.common.names import Names
from cli.common.options import Globals, global_options
from cli.diagnose.follow import Follower, Line, MembershipChange, describe
from cli.diagnose.health import Gathered
from cli.diagnose.live.board import Board
from cli.diagnose.live.controls import Controls
from cli.diagnose.live.terminal import Poll, keys
from cli.shell import complete
from coord.client.session import SessionState
from regions.diagnose.health import judge
from regions.records.model import RegionState
from regions.transitions.observed import NONE, Change

#: Value of --state for the end of a transition.
DONE: Final = "done"
_REFRESH_S: Final = 0.5

_STYLES = {
    "OFFLINE": "yellow",
    "OPENING": "cyan",
    "OPENED": "green",
    "CLOSING": "magenta",
    "CLOSED": "magenta",
    NONE: "dim",
}


@click.command()
@click.option("--table", "table_name", shell_complete=complete.tables, help="Only this table's transitions.")
@click.option(
    "--server",
    "server_name",
    shell_complete=complete.servers,
    help="Only transitions on this server (its name, or host:port).",
)
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice([*(state.value for state in RegionState), DONE], case_sensitive=False),
    help="Only steps to this state; may be repeated.",
)
@click.option(
    "--live", is_flag=True, help="Full screen: health, regions in transition, servers; keys sort, filter and pause."
)
@click.option("--count", type=click.IntRange(1), help="Stop after this number of transitions.")
@global_options
@click.pass_obj
def watch(
    given: Globals,
    table_name: str | None,
    server_name: str | None,
    states: tuple[str, ...],
    live: bool,
    count: int | None,
) -> None:
    """Print each step of a transition: time, table, keys, step, server, reason, attempt. Stop with Ctrl-C.

    With --json one object per line. Its "event" is watching (no later event can be missed), transition, active,
    no-active, server-up, server-down or connection.
    """
    if live and given.json:
        raise UsageFaultError("--live and --json exclude each other", "Give one of them.")
    if live and not sys.stdout.isatty():
        raise UsageFaultError("--live needs a terminal", "Without --live, rk watch prints a line for each step.")
    with open_cluster(given) as cluster:
        names = Names(cluster.servers(), cluster.local)
        hosts, root, access = cluster.hosts, cluster.layout.root or "/", cluster.access
        if table_name is not None:
            table_name = _table(cluster, table_name)
    from twisted.internet import reactor

    follower = Follower(reactor, hosts, root, access=access, wipe_allowed=True)
    wanted = Wanted(table_name, server_name, tuple(NONE if one == DONE else one for one in states))
    shown = Watch(follower, names, as_json=given.json, wanted=wanted, count=count, live=live)
    shown.run(reactor, Poll(given, reactor, shown.take_health) if live else None)


def _table(cluster: Cluster, name: str) -> str:
    """Return the name of the table with this name or id. Raise NotFoundError for an unknown table."""
    return table_of({one.table_id: one for one in cluster.tables()}, name).name


class Wanted(NamedTuple):
    """Filter of the transitions that are shown."""

    table: str | None = None
    server: str | None = None
    states: tuple[str, ...] = ()

    def fits(self, line: Line) -> bool:
        """Return True if a line passes the filter."""
        if self.table not in (None, line.table) or self.server not in (None, line.server):
            return False
        return not self.states or line.after in self.states


class Watch:
    """Prints the changes of a follower in the order in which they happened."""

    def __init__(
        self,
        follower: Follower,
        names: Names,
        *,
        as_json: bool,
        wanted: Wanted,
        count: int | None,
        live: bool = False,
    ) -> None:
        self._follower = follower
        self._names = names
        self._as_json = as_json
        self._wanted = wanted
        self._controls = Controls()
        self._board = Board(names, follower.clock.now_ms(), self._controls) if live else None
        #: Content and time of a paused screen.
        self._frozen: tuple[Board, int] | None = None
        self._screen: Live | None = None
        self._left = count
        self._waiting: deque[Change | MembershipChange] = deque()
        self._printing = False
        self._console: Console = output.console()
        self._failure: CliError | None = None
        self._reactor: Any = None
        #: True while the watch is ending: the loss of its own connection is not reported.
        self._is_ending = False
        follower.on_change = self._add
        follower.on_membership = self._add

    def run(self, reactor: Any, poll: Poll | None = None) -> None:
        """Run until Ctrl-C, until the count is reached, or until the store is lost for good. Raise CliError.

        `poll` asks for the health that the screen shows.
        """
        self._reactor = reactor
        reactor.addSystemEventTrigger("before", "shutdown", self._end)
        reactor.callWhenRunning(
            lambda: ensureDeferred(self._follower.start()).addCallbacks(self._started, self._failed)
        )
        with ExitStack() as stack:
            stack.callback(self._leave_screen)
            if poll is not None:
                stack.enter_context(keys(reactor, self._press))
                poll.start()
                stack.callback(poll.stop)
            reactor.run()
        if self._failure is not None:
            raise self._failure

    def _started(self, _: object) -> None:
        if self._board is not None:
            self._begin_screen(self._board)
            return
        records = self._follower.history.records().values()
        left, parked = len(records), sum(one.parked for one in records)
        if self._as_json:
            output.print_json_line(
                {"event": "watching", "time_ms": self._follower.clock.now_ms(), "in_transition": left}
            )
        else:
            now = output.in_transition(left, parked, "region")
            self._console.print(f"watching; now {now}. Stop with Ctrl-C.", style="dim")

        self._follower.client.on_state(self._connection)

    def _end(self) -> None:
        self._is_ending = True

    def _leave_screen(self) -> None:
        if self._screen is not None:
            self._screen.stop()

    def _press(self, typed: str) -> None:
        """Process keys, and show their effect at once."""
        self._controls.press(typed)
        if self._controls.has_quit:
            self._stop()
        elif self._screen is not None:
            self._draw()

    def take_health(self, found: Gathered) -> None:
        """Show the answers of all processes."""
        if self._board is not None:
            self._board.health(judge(found.findings), found.findings)

    def _begin_screen(self, board: Board) -> None:
        for server in self._follower.servers.values():
            board.server(server.uuid, self._names.of_uuid(server.uuid), is_up=True)
        active = self._follower.active
        board.active = "" if active is None else self._names.of_address(active.host, active.port)
        ensureDeferred(self._add_present(board)).addErrback(self._failed)
        self._screen = Live(console=self._console, screen=True, auto_refresh=False)
        self._screen.start()
        self._refresh()

    async def _add_present(self, board: Board) -> None:
        """Show the regions that are in transition already, including parked ones, each with its age from the store."""
        now_ms = self._follower.clock.now_ms()
        for key, record in self._follower.history.records().items():
            change = Change(record.since_ms or now_ms, key, NONE, record.state.value, record)
            line = await self._follower.line(change, self._names)
            if self._wanted.fits(line) and self._follower.history.records().get(key) == record:
                board.begin(line)

    def _refresh(self) -> None:
        self._reactor.callLater(_REFRESH_S, self._refresh)
        self._draw()

    def _draw(self) -> None:
        """Draw the screen: the present content, or while paused that of the begin of the pause."""
        if self._board is None or self._screen is None:
            return
        now_ms = self._follower.clock.now_ms()
        if not self._controls.is_paused:
            self._frozen = None
        elif self._frozen is None:
            self._frozen = self._board.frozen(), now_ms
        board, at_ms = self._frozen or (self._board, now_ms)
        self._screen.update(board.draw(at_ms, self._console.height), refresh=True)

    def _connection(self, state: SessionState) -> None:
        """Report the loss and the return of the connection."""
        what = {SessionState.SUSPENDED: "lost", SessionState.CONNECTED: "back", SessionState.EXPIRED: "expired"}.get(
            state
        )
        if what is None or self._is_ending:
            return
        now_ms = self._follower.clock.now_ms()
        if self._as_json:
            output.print_json_line({"event": "connection", "time_ms": now_ms, "state": what})
            return
        text = {
            "lost": "connection with the store lost, reconnecting",
            "back": "reconnected; changes since the loss follow",
            "expired": "the session expired, beginning a new one",
        }[what]
        self._console.print(Text(f"{output.clock(now_ms)}  ** {text}", style="bold"), soft_wrap=True)

    def _failed(self, failure: Failure) -> None:
        if self._is_ending:
            return  # SIGTERM, Ctrl-C or the last line ends the session, and the requests that wait for it fail
        self._failure = UnreachableError(f"cannot watch the store: {failure.getErrorMessage()}")
        self._stop()

    def _stop(self) -> None:
        """Stop the reactor unless a signal has stopped it already."""
        self._is_ending = True
        with suppress(ReactorNotRunning):
            self._reactor.stop()

    def _add(self, change: Change | MembershipChange) -> None:
        """Queue a change: a line may need a read first, and later lines must not overtake it."""
        # A watch may run for weeks; reported changes are dropped.
        self._follower.history.changes.clear()
        self._follower.memberships.clear()
        self._waiting.append(change)
        if not self._printing:
            self._printing = True
            ensureDeferred(self._drain()).addErrback(self._failed)

    async def _drain(self) -> None:
        while self._waiting:
            change = self._waiting.popleft()
            if isinstance(change, MembershipChange):
                self._print_membership(change)
            else:
                self._print_line(await self._follower.line(change, self._names))
            if self._left == 0:
                self._stop()
                break
        self._printing = False

    def _print_line(self, line: Line) -> None:
        if not self._wanted.fits(line) or self._left == 0:
            return
        if self._left is not None:
            self._left -= 1
        if self._as_json:
            output.print_json_line(line)
        elif self._board is not None:
            self._board.step(line, text_of(line))
        else:
            self._console.print(text_of(line), soft_wrap=True)

    def _print_membership(self, news: MembershipChange) -> None:
        server = self._follower.servers.get(news.uuid)
        if server is not None:
            self._names.learn(server)
        name = self._names.at(news.address)
        if self._as_json:
            fields = {"event": news.what, "time_ms": news.at_ms, "name": name, "address": news.address}
            output.print_json_line({**fields, "uuid": news.uuid, "epoch": news.epoch})
            return
        what = {
            "active": f"{name} is the active master, epoch {news.epoch}",
            "no-active": f"{name} is no longer the active master",
            "server-up": f"{name} has registered",
            "server-down": f"{name} is gone",
        }[news.what]
        if self._board is not None:
            if news.what in ("active", "no-active"):
                self._board.active = name if news.what == "active" else ""
            else:
                self._board.server(news.uuid, name, is_up=news.what == "server-up")
            self._board.membership(news, what)
            return
        self._console.print(Text(f"{output.clock(news.at_ms)}  ** {what}", style="bold"), soft_wrap=True)


def text_of(line: Line) -> Text:
    """Return one line for people."""
    text = Text(f"{output.clock(line.time_ms)}  {line.table} {output.key_range(line.start_key, line.end_key)}")
    if line.replica:
        text.append(f" #{line.replica}")
    text.append("  ")
    text.append(describe(line.before, line.after), style=_STYLES.get(line.after, ""))
    if line.missed:
        text.append(f" ({line.missed} unseen in between)", style="dim")
    if line.inferred:
        text.append(" (too quick to be observed)", style="dim")
    tail = [line.server, line.why, f"attempt {line.attempt}" if line.attempt else "", line.error]
    text.append("  " + "  ".join(part for part in tail if part))
    return text
