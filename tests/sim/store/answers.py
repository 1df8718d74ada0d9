"""The expected answers to clients, by the model: to a write at its zxid, to a read at the zxid that it carries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from coord import errors as e
from coord.wire import records as r
from simulation.engine.history import Violation
from tests.sim.store.model import Expected, Identity, Line, Model, allows

if TYPE_CHECKING:
    from tests.sim.store.clients import Request

SESSION_ENDED: Final = (e.SESSION_EXPIRED, e.SESSION_MOVED)


def check_ok(who: str, what: str, err: int) -> None:
    """Check that the request was granted."""
    if err != e.OK:
        raise Violation(f"{who}: err {err} for {what}")


def check_refused_read_only(who: str, xid: int, err: int) -> None:
    """Check that a node without a leader rejected a write."""
    if err != e.NOT_READ_ONLY:
        raise Violation(f"{who}: err {err} for {xid} from a node that serves reads only")


def check_auth(model: Model, who: str, session_id: int, zxid: int, err: int) -> None:
    """Check that the log has the client's identity at this zxid."""
    expected = model.history[zxid - 1]
    if (expected.command.session_id, expected.command.opcode, expected.err) != (session_id, r.OP_AUTH, err):
        raise Violation(f"{who}: err {err} for its auth at zxid {zxid}, where history has another command or answer")


def expected_at(model: Model, who: str, session_id: int, request: Request, zxid: int, err: int) -> Expected:
    """Return the outcome in the history for the write that is reported at `zxid`."""
    expected = model.history[zxid - 1]
    command = expected.command
    if command.session_id != session_id or command.cxid != request.xid or command.body != request.body:
        raise Violation(
            f"{who}: the answer to {request.xid} says zxid {zxid}, which is {command.cxid} of {command.session_id:#x}"
        )
    if err != expected.err:
        raise Violation(f"{who}: err {err} for {request.xid} at zxid {zxid}, should be {expected.err}")
    return expected


def check_write(who: str, request: Request, expected: Expected, err: int, body: bytes) -> None:
    """Check the record of the answer to a write."""
    if err == e.OK and request.opcode != r.OP_CLOSE_SESSION:
        said = _answer(request.opcode, body)
        if said != expected.answer:
            raise Violation(f"{who}: {said} for {request.xid} at zxid {expected.zxid}, should be {expected.answer}")


def check_read(
    model: Model, who: str, opcode: int, path: bytes, zxid: int, err: int, body: bytes, identities: list[Identity]
) -> None:
    """Check the answers to getData, exists, getChildren2 and getACL."""
    view = model.at(path, zxid)
    needed = r.PERM_READ | r.PERM_ADMIN if opcode == r.OP_GET_ACL else r.PERM_READ
    should = e.NO_NODE if view is None else e.OK if allows(view[9], needed, identities) else e.NO_AUTH
    if err != should:
        raise Violation(f"{who} reads {path!r} at {zxid}: err {err}, should be {should}; {view}")
    if view is None or err != e.OK:
        return
    if opcode == r.OP_GET_DATA:
        data, stat = r.decode_data_reply(body, 0, len(body))
        if data != view[0]:
            raise Violation(f"{who} reads {data!r} from {path!r} at {zxid}, should be {view[0]!r}")
    elif opcode == r.OP_GET_CHILDREN2:
        children, stat = r.decode_children2_reply(body, 0, len(body))
        expected = model.children_at(path, zxid)
        if tuple(children) != expected:
            raise Violation(f"{who} lists {children} in {path!r} at {zxid}, should be {expected}")
    elif opcode == r.OP_GET_ACL:
        lines, stat = r.decode_acl_reply(body, 0, len(body))
        shown = tuple((line.perms, line.scheme, line.id) for line in lines)
        should_show = view[9] if allows(view[9], r.PERM_ADMIN, identities) else _masked(view[9])
        if shown != should_show:
            raise Violation(f"{who} reads the access list {shown} of {path!r} at {zxid}, should be {should_show}")
    else:
        stat = r.decode_stat(body, 0, len(body))
    told = (stat.czxid, stat.mzxid, stat.version, stat.ephemeral_owner, stat.aversion)
    if told != (view[1], view[2], view[3], view[5], view[8]):
        raise Violation(f"{who} reads {stat} of {path!r} at {zxid}, should be {view}")


def _masked(acl: tuple[Line, ...]) -> tuple[Line, ...]:
    """Return the access list as clients without the admin right see it: without digests."""
    return tuple(
        (perms, scheme, name.partition(b":")[0] + b":x" if scheme == b"digest" else name) for perms, scheme, name in acl
    )


def _answer(opcode: int, body: bytes) -> Any:
    """Return a write's answer in the model's form."""
    if opcode == r.OP_CREATE:
        return r.decode_path(body, 0, len(body))
    if opcode in (r.OP_CREATE2, r.OP_CREATE_CONTAINER, r.OP_CREATE_TTL):
        return r.decode_create2_reply(body, 0, len(body))[0]
    if opcode == r.OP_SET_DATA:
        return r.decode_stat(body, 0, len(body)).version
    if opcode == r.OP_SET_ACL:
        return r.decode_stat(body, 0, len(body)).aversion
    if opcode != r.OP_MULTI:
        return None
    parts: list[tuple[int, Any]] = []
    for result in r.decode_multi_reply(body, 0, len(body)):
        answer: Any = result.path or None
        if result.stat is not None and result.opcode == r.OP_SET_DATA:
            answer = result.stat.version
        parts.append((result.err, answer))
    return parts
