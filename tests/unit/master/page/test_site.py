"""Requests of the page: what is served, with which headers, and what is refused. Bytes in, bytes out."""

from __future__ import annotations

import hashlib
import json
import re
from types import SimpleNamespace
from typing import Any

from prometheus_client import CollectorRegistry
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.trial.unittest import SynchronousTestCase

from coord.errors import ConnectionLoss
from coord.http import AdminHttp
from master.page.listeners import LISTENERS_MAX
from master.page.site import HEADERS, PageSite, is_local, load_assets
from master.page.views import NotFound
from tests.unit.master.page.fake_master import FakeMaster, cluster_of, feed_of, pass_time

#: The vendored library: uPlot 1.6.32 from the npm registry, unchanged.
VENDORED = {
    b"/ui/uplot.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    b"/ui/uplot.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
}


class _Views:
    """Views that return, or raise, what a test wants."""

    async def read(self, view: str, given: dict[str, str]) -> object:
        if view == "broken":
            raise KeyError("a secret")
        if view == "away":
            raise ConnectionLoss("the store is away")
        if view != "echo":
            raise NotFound(f"There is no view {view!r}.")
        return {"given": given}


class PagePort(SynchronousTestCase):
    """The page on an admin port."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.feed = feed_of(self.clock, FakeMaster(self.clock, cluster_of(5)))
        self.may_serve = True
        self.page = PageSite(self.feed, _Views(), lambda _request: self.may_serve)  # type: ignore[arg-type]
        admin = AdminHttp(
            registry=CollectorRegistry(),
            health=lambda: (True, {}),
            ready=lambda: (True, {}),
            status=dict,
            front=self.page,
            names=set(),
        )
        self.site = admin.site(self.clock)
        self.site.doStart()
        self.addCleanup(self.site.doStop)

    def open(self, line: str, host: str = "127.0.0.1:1", more: str = "") -> Any:
        channel = self.site.buildProtocol(None)
        transport = StringTransport()
        channel.makeConnection(transport)
        channel.dataReceived(f"{line} HTTP/1.1\r\nhost: {host}\r\n{more}\r\n".encode())
        return transport

    def ask(self, line: str, **more: str) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and body of one request."""
        head, _, body = self.open(line, **more).value().partition(b"\r\n\r\n")
        status, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (one.partition(": ") for one in lines)}
        return int(status.split()[1]), headers, body

    def test_page_and_files_with_the_policy(self) -> None:
        """Every reply has every header of the policy; nothing may be kept by a cache or framed."""
        for path in ("/", "/ui/app.js", "/ui/style.css", "/ui/icon.svg", "/ui/data/echo?a=1", "/ui/nothing"):
            status, headers, _ = self.ask(f"GET {path}")
            assert status == (404 if "nothing" in path else 200)
            for name, value in HEADERS.items():
                assert headers[name.decode()] == value.decode()
        policy = self.ask("GET /")[1]["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy

    def test_only_get_and_head(self) -> None:
        """The page changes nothing."""
        for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
            for path in ("/", "/ui/stream", "/ui/data/echo"):
                assert self.ask(f"{method} {path}")[0] == 405
        status, headers, body = self.ask("HEAD /")
        assert (status, body) == (200, b"")
        assert int(headers["content-length"]) > 500
        assert self.ask("HEAD /ui/stream")[0] == 200
        assert not self.feed.listeners

    def test_foreign_hosts_get_nothing(self) -> None:
        """Not even the stream."""
        for path in ("/", "/ui/stream", "/ui/data/echo"):
            assert self.ask(f"GET {path}", host="evil.example")[0] == 403

    def test_without_permission_there_is_nothing(self) -> None:
        """Without permission the port serves neither files nor data nor the stream."""
        self.may_serve = False
        for path in ("/", "/ui/app.js", "/ui/data/echo", "/ui/stream"):
            assert self.ask(f"GET {path}")[0] == 403
        assert not self.feed.listeners

    def test_a_secured_daemon_asks_a_browser_for_the_token(self) -> None:
        """With a form, instead of the page; nothing else is served without a token."""
        self.patch(AdminHttp, "objection", lambda _admin, _request: (401, "This daemon is secured."))
        status, headers, body = self.ask("GET /")
        assert (status, headers["content-type"]) == (401, "text/html; charset=utf-8")
        assert b'name="token"' in body
        assert b"script" not in body
        assert "form-action 'self'" in headers["content-security-policy"]
        for path in ("/ui/app.js", "/ui/stream", "/ui/data/echo"):
            assert self.ask(f"GET {path}")[0] == 401
        assert not self.feed.listeners

    def test_the_page_is_for_this_machine(self) -> None:
        """For any address of the port only loopback addresses of both families are served."""
        for host, expected in (
            ("127.0.0.1", True),
            ("127.8.0.1", True),
            ("::1", True),
            ("::ffff:127.0.0.1", True),
            ("10.0.0.1", False),
            ("::ffff:10.0.0.1", False),
            ("fe80::1%eth0", False),
            ("", False),
        ):
            request = SimpleNamespace(getClientAddress=lambda host=host: SimpleNamespace(host=host))
            assert is_local(request) is expected, host

    def test_data_and_its_errors(self) -> None:
        """Each error is one sentence; an internal error does not reveal its cause."""
        assert json.loads(self.ask("GET /ui/data/echo?name=%C3%A4%22%3C")[2]) == {"given": {"name": 'ä"<'}}
        assert self.ask("GET /ui/data/other")[0] == 404
        assert self.ask("GET /ui/data/away")[0] == 503
        status, _, body = self.ask("GET /ui/data/broken")
        assert status == 500
        assert b"secret" not in body
        assert len(self.flushLoggedErrors(KeyError)) == 1

    def test_stream_and_its_bound(self) -> None:
        """Events come as they are made; beyond the bound a sentence and a time to wait."""
        streams = [self.open("GET /ui/stream") for _ in range(LISTENERS_MAX)]
        pass_time(self.clock, 0.3)
        for one in streams:
            assert b"content-type: text/event-stream" in one.value().lower()
            assert b"event: end" in one.value()
        status, headers, _ = self.ask("GET /ui/stream")
        assert (status, headers["retry-after"]) == (503, "10")
        assert self.ask("GET /status")[0] == 200

    def test_no_path_leaves_the_folder(self) -> None:
        """Files are served by name from memory."""
        for path in ("/ui/../site.py", "/ui/%2e%2e/site.py", "/ui//etc/passwd", "/ui/__init__.py", "/ui/"):
            assert self.ask(f"GET {path}")[0] == 404


class Assets(SynchronousTestCase):
    """The files of the page."""

    def test_vendored_library_is_unchanged(self) -> None:
        """Version, license and hash stand beside each other."""
        assets = load_assets()
        for path, digest in VENDORED.items():
            assert hashlib.sha256(assets[path][1]).hexdigest() == digest

    def test_nothing_is_loaded_from_elsewhere(self) -> None:
        """No foreign address, no inline script or style, no markup from text."""
        for path, (_, content) in load_assets().items():
            if path in VENDORED:
                continue
            text = content.decode()
            found = [
                one for one in re.findall(r"https?://[^\s\"'`)]*", text) if "www.w3.org" not in one and "${" not in one
            ]
            assert found == [], path
            for word in (
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                "outerHTML",
                " style=",
                "<script>",
                "onclick=",
            ):
                assert word not in text, (path, word)
            assert not re.search(r"innerHTML\s*=[^=]", text), path

    def test_modules_import_what_exists(self) -> None:
        """A browser would show an empty page."""
        assets = load_assets()
        for path, (_, content) in assets.items():
            if path.endswith(b".js") and path not in VENDORED:
                for name, file in re.findall(r"import \{([^}]*)\} from \"\./([a-z]+\.js)\"", content.decode()):
                    exported = set(
                        re.findall(
                            r"export (?:async )?(?:function|class|const) (\w+)",
                            assets[f"/ui/{file}".encode()][1].decode(),
                        )
                    )
                    exported |= set(re.findall(r", (\w+) = \d", assets[f"/ui/{file}".encode()][1].decode()))
                    wanted = {one.strip() for one in name.split(",")}
                    assert wanted <= exported, (path, file, wanted - exported)
