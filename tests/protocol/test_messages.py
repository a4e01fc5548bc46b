"""Each call and each answer is read as it was sent, or refused by the one typed error.

A kernel's calls of its checkpoint helper, too. What is made from a declared document says the same
everywhere, and reading loads nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields
from typing import Any, get_args

import pytest
from hypothesis import given, strategies as st

from jupyter_gpushare.link.schema import components, fields as fields_of
from jupyter_gpushare.node.views.status import DisplayState
from jupyter_gpushare.policy.recall.outlook import Basis
from jupyter_gpushare.policy.words import model
from jupyter_gpushare.protocol import calls, documents as doc, messages
from jupyter_gpushare.protocol.calls import Call, LeftOut, QuotaName, parse_call
from jupyter_gpushare.protocol.checkpoint import (
    VERSION,
    Ability,
    Action,
    Outcome,
    Request,
    SeenGpu,
    Target,
    decode_answer,
    decode_request,
    encode_answer,
    encode_request,
)
from jupyter_gpushare.protocol.errors import (
    DOMAIN_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    MEANING,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    Reason,
    RemoteProtocolError,
)
from jupyter_gpushare.protocol.framing import encode
from jupyter_gpushare.protocol.messages import (
    Answer,
    ErrorAnswer,
    Method,
    Notice,
    Notification,
    parse_incoming,
)
from jupyter_gpushare.protocol.shapes import Words, private, shapes

CODES = {PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS}


#: What a good call of every method says.
GOOD: dict[Method, dict[str, Any]] = {
    Method.HELLO: {"protocol": 1, "client": {"name": "n", "version": "1"}, "token": "t"},
    Method.REQUEST: {
        "task": {"name": "nb", "kind": "kernel", "kernel_id": "k", "path": "/nb.ipynb"},
        **{"request_id": "r", "gpus": 2, "memory": 2**33, "priority_class": "batch"},
        "wait": False,
    },
    Method.ATTACH: {"lease": "l", "secret": "s"},
    Method.HEARTBEAT: {"lease": "l"},
    Method.ACTIVITY: {"lease": "l", "state": "idle"},
    Method.PARKING: {"lease": "l", "memory": 5},
    Method.PARKED: {"lease": "l", "rung": "driver", "memory": 5, "movable": "same", "seconds": 1.5},
    Method.GAVE: {
        **{"lease": "l", "give": "lift", "live": False},
        "limits": [{"uuid": "GPU-1", "memory": 5}],
    },
    Method.RESTORED: {"lease": "l", "seconds": 2.0},
    Method.PIN: {"lease": "l", "seconds": 60},
    Method.ABILITY: {"lease": "l", "rung": "storage", "why": "no driver"},
    Method.STOPPABLE: {"lease": "l", "can": True},
    Method.PROGRESS: {"lease": "l", "done": 40, "total": None, "seconds": 0.5},
    Method.PROMISE: {"lease": "l", "deadline": 600, "rate": 2.0},
    Method.SERVING: {
        **{"lease": "l", "address": "http://[::1]:8000/api", "requests": 1, "share": ["group:lab"]},
        **{"held": 2, "sleeps": 3, "wake_seconds": 0.5, "token": "t", "model": "m"},
    },
    Method.SERVERS: {},
    Method.MEMORY: {
        "lease": "l",
        "figures": [{"uuid": "GPU-0", "persistent": 3, "temporary": 2}],
        **{"steps": 7, "can_take_turns": True},
    },
    Method.TURN_ASK: {"lease": "l", "number": 3},
    Method.TURN_DONE: {"lease": "l"},
    Method.TURN_LOCK: {"lease": "l"},
    Method.TURN_LOCKED: {"lease": "l"},
    Method.KEPT: {"lease": "l", "reason": "why"},
    Method.RESUME: {"lease": "l", "wait": False},
    Method.RELEASE: {"request_id": "r"},
    Method.STATUS: {},
    Method.WATCH: {},
    Method.USAGE: {"since": 60, "environment": "e"},
    Method.USAGE_DAILY: {"days": 366, "utc_offset": -50400},
    Method.READINGS: {"since": 86400},
    Method.PREDICT: {
        **{"task": {"name": "n", "kind": "process"}, "framework": "jax", "training": False},
        "operations": [{"kind": "MatMul", "largest": 4, "count": 3, "flops": 2**70, "bytes": 1.5}],
        **{"batch": 8, "iterations": 9, "inputs": 7, "peak": 6},
    },
    Method.HISTORY: {"limit": 7},
    Method.TASK_ENDED: {"kernel_id": "k", "pid": 9},
    Method.TASK_RENAMED: {"kernel_id": "k", "name": "b.ipynb", "path": "/b.ipynb"},
    Method.QUOTA_LIST: {},
    Method.QUOTA_SET: {
        **{"environment": "e", "gpus": 1, "memory": None, "weight": 2, "burst_memory": 0.5},
    },
    Method.QUOTA_UNSET: {"environment": "e"},
    Method.LEASE_REVOKE: {"lease": "l", "reason": "why"},
    Method.NODE_DRAIN: {"reason": "cooling"},
    Method.NODE_RESUME: {},
    Method.POOL_FOLLOW: {"pool": "p"},
    Method.POOL_LEND: {
        **{"as_of": {"boot_id": "b", "at": 7}, "seconds": 120, "complete": True},
        "budgets": [
            {"environment": "e", "gpus": 1, "quota": {"gpus": 2, "memory": None}, "why": "w"}
        ],
    },
    Method.POOL_HINT: {
        "hints": [{"environment": "e", "host": "b", "gpus": 1, "kind": "A", "text": "there"}]
    },
    Method.POOL_CERTIFY: {"certificates": "c", "authorities": "a"},
    Method.LEDGER_BACKUP: {"offset": 7},
    Method.LEDGER_CHECK: {},
    Method.LEDGER_VACUUM: {},
    Method.GPU_DRAIN: {"gpu": "GPU-1", "reason": "a fan"},
    Method.GPU_RESUME: {"gpu": "GPU-1"},
}


def left_of(sent: Any, read: Any) -> Any:
    """What of ``read`` was named in ``sent``, as JSON has it."""
    if isinstance(sent, list):
        return [left_of(one, part) for one, part in zip(sent, read, strict=True)]
    if isinstance(sent, dict):
        whose = getattr(read, "whose", read)  # a quota's: its members stand among the others
        of = {name: read if hasattr(read, name) else whose for name in sent}
        return {name: left_of(part, getattr(of[name], name)) for name, part in sent.items()}
    return read


def line_of(method: Method, params: object, call_id: object = 1) -> bytes:
    text = json.dumps({"jsonrpc": "2.0", "id": call_id, "method": method.value, "params": params})
    # What JSON can say of it: a number too large for a float.
    return text.replace("Infinity", "1e999").encode()


def refusal(line: bytes) -> RemoteProtocolError:
    with pytest.raises(RemoteProtocolError) as caught:
        parse_call(line)
    assert caught.value.code in CODES
    assert caught.value.reason is Reason.BAD_REQUEST
    return caught.value


@pytest.mark.parametrize("name", ["memory", "gpu_hours", "idle_timeout", "burst_memory"])
def test_null_says_something_else_than_left_out(name: str) -> None:
    usual = {"environment": "e", "gpus": 1}
    for named, value in (({}, LeftOut.KEEP), ({name: None}, None), ({name: 7}, 7.0)):
        call = parse_call(line_of(Method.QUOTA_SET, {**usual, **named}))
        assert getattr(call.params, name) == value
        assert call.params.weight is LeftOut.KEEP


def test_a_quota_is_an_environments_a_groups_or_the_default_one() -> None:
    for said, whose in (
        ({"environment": "e"}, QuotaName("e")),
        ({"group": "g"}, QuotaName(group="g")),
        ({"default": True}, QuotaName()),
    ):
        set_ = parse_call(line_of(Method.QUOTA_SET, {**said, "per": "month"}))
        assert set_.params == calls.QuotaParams(whose, per="month")
        assert parse_call(line_of(Method.QUOTA_UNSET, said)).params == whose
    for wrong in ({}, {"default": False}, {"environment": "e", "default": True}):
        refusal(line_of(Method.QUOTA_UNSET, wrong))


# -- round trips --------------------------------------------------------------------


@pytest.mark.parametrize("method", Method)
def test_a_good_call_of_every_method_comes_through(method: Method) -> None:
    sent = GOOD[method]
    call = parse_call(encode(messages.call(7, method, sent)))
    assert (call.id, call.method, type(call.params)) == (7, method, calls.PARAMS[method])
    assert left_of(sent, call.params) == sent
    # A newer client may say more.
    more = {**sent, "from_the_future": [1, {"a": None}]}
    assert parse_call(encode(messages.call("x", method, more))) == Call("x", method, call.params)


IDS = st.integers(-(2**53), 2**53) | st.text(st.characters(codec=None), max_size=128)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(IDS, st.dictionaries(st.text(), PLAIN, max_size=3))
def test_answers_come_through(call_id: int | str, result: dict[str, Any]) -> None:
    assert parse_incoming(encode(messages.answer(call_id, result))) == Answer(call_id, result)


@given(st.sampled_from(Notice), st.dictionaries(st.text(), PLAIN, max_size=3))
def test_notifications_come_through(notice: Notice, params: dict[str, Any]) -> None:
    read = parse_incoming(encode(messages.notification(notice, params)))
    assert read == Notification(notice, notice.value, params)


@given(st.none() | IDS, st.sampled_from(Reason), st.text(), st.sampled_from(sorted(CODES)))
def test_error_answers_come_through(
    call_id: int | str | None, reason: Reason, message: str, code: int
) -> None:
    sent = messages.error_answer(call_id, reason, message, code=code, data={"asked": 3})
    read = parse_incoming(encode(sent))
    assert isinstance(read, ErrorAnswer)
    assert read.id == call_id
    assert (read.error.code, read.error.reason) == (code, reason)
    assert read.error.message == message
    assert read.error.data["asked"] == 3


def test_a_notification_and_a_reason_of_the_future_are_no_errors() -> None:
    assert parse_incoming(b'{"jsonrpc":"2.0","method":"sing","params":{}}') == Notification(
        None, "sing", {}
    )
    read = parse_incoming(
        b'{"jsonrpc":"2.0","id":1,"error":{"code":-32000,"message":"m","data":{"reason":"new"}}}'
    )
    assert isinstance(read, ErrorAnswer)
    assert read.error.reason is None
    assert read.error.code == DOMAIN_ERROR
    assert set(MEANING) == set(Reason), "those of today are told in the documentation"


# -- defaults and bounds ------------------------------------------------------------


def test_params_are_an_object_or_left_out_and_so_is_a_token() -> None:
    for wrong in (None, [], "x", 3, [{"lease": "l"}]):
        assert refusal(line_of(Method.HEARTBEAT, wrong)).code == INVALID_PARAMS
    assert parse_call(b'{"jsonrpc":"2.0","id":1,"method":"status"}').params == calls.StatusParams(0)
    hello = {"protocol": 1, "client": {"name": "n", "version": "v"}}
    assert parse_call(line_of(Method.HELLO, hello)).params.token is None


#: Wrong values of fields, each in a call that is good but for it: of each form one. Which bounds a
#: field has is in docs/protocol.md, made from its declaration.
WRONG: dict[Method, dict[str, list[Any]]] = {
    Method.HELLO: {
        "protocol": ["1", True, 1.0],
        "client": ["me", {"name": "n"}],
        "token": ["", "t" * 8193],
    },
    Method.REQUEST: {
        "task": [
            None,
            {"name": "n", "kind": "thread"},
            {"name": "n" * 257, "kind": "kernel"},
            {"name": "n", "kind": "kernel", "path": "p" * 4097},
            {"name": "n", "kind": "kernel", "path": "\ud800"},
            {"name": "a\0b", "kind": "kernel"},
        ],
        "gpus": [True, 1.5, 2**32],
        "memory": ["8GiB", 2**63, 8, 10**400],
        "priority_class": ["royal", ["batch"]],
        "wait": [1],
        "request_id": ["r" * 129],
    },
    Method.ATTACH: {"secret": [5], "lease": ["\udc80"]},
    Method.MEMORY: {
        "figures": [
            *(None, [1], [{"uuid": "GPU-0", "persistent": 1}]),
            [{"uuid": "GPU-0", "persistent": -1, "temporary": 0}],
            [{"uuid": "u", "persistent": 1, "temporary": 1}] * 1025,
        ],
        "can_take_turns": ["yes"],
    },
    Method.QUOTA_SET: {
        "gpu_hours": [-1, False, "many"],
        "idle_timeout": [1e999],
        "burst_memory": [-0.5],
        "per": ["year", "2026-02-30"],
        "group": ["both"],
        "default": [True],
        "environment": [None],
        "gpus": [-1, 4097, None],
        "memory": [0],
        "weight": [0, "2", None],
    },
    Method.USAGE: {"since": [-1, 1e999, 10**400, True, None]},
    Method.LEASE_REVOKE: {"reason": ["", "r" * 1025]},
    Method.GPU_DRAIN: {"reason": ["two\nlines", "\u202etxet", "r" * 257]},
}


@pytest.mark.parametrize(
    ("method", "change"),
    [
        *(
            (m, {name: value})
            for m, of in WRONG.items()
            for name, some in of.items()
            for value in some
        ),
        (Method.PARKED, {"movable": None, "seconds": -1}),
        (Method.RELEASE, {"lease": "l", "request_id": "r"}),
        (Method.RELEASE, {"lease": None, "request_id": None}),
    ],
)
def test_a_wrong_value_is_refused_with_a_sentence(method: Method, change: dict[str, Any]) -> None:
    error = refusal(line_of(method, {**GOOD[method], **change}, "id"))
    assert error.code == INVALID_PARAMS
    assert error.call_id == "id"
    assert str(error).startswith(f"{method.value}:")
    assert str(error).endswith(".")


@pytest.mark.parametrize(
    "call_id", [None, True, 1.5, [], {}, 2**53 + 1, -(2**53) - 1, "i" * 129, 1e999]
)
def test_a_call_needs_a_usable_id(call_id: object) -> None:
    error = refusal(line_of(Method.STATUS, {}, call_id))
    assert error.code == INVALID_REQUEST
    assert error.call_id is None


def test_a_call_without_an_id_or_version_is_refused() -> None:
    refusal(b'{"jsonrpc":"2.0","method":"status"}')
    assert refusal(b'{"id":3,"method":"status"}').call_id == 3
    assert refusal(b'{"jsonrpc":2.0,"id":3,"method":"status"}').call_id == 3


@pytest.mark.parametrize("method", ["nope", "", 7, None, ["status"], "STATUS", "x" * 60_000])
def test_an_unknown_method_is_refused_by_its_code(method: object) -> None:
    line = json.dumps({"jsonrpc": "2.0", "id": 3, "method": method}).encode()
    error = refusal(line)
    assert (error.code, error.call_id) == (METHOD_NOT_FOUND, 3)
    assert len(str(error)) < 400, "what came in is not sent back whole"


def test_the_last_of_duplicate_keys_counts() -> None:
    line = b'{"jsonrpc":"2.0","id":1,"id":2,"method":"hello","method":"status"}'
    assert parse_call(line) == Call(2, Method.STATUS, calls.StatusParams(0))


@pytest.mark.parametrize(
    "line",
    [
        b"{}",
        b'{"jsonrpc":"2.0"}',
        b'{"jsonrpc":"2.0","id":1}',
        b'{"jsonrpc":"2.0","result":{}}',
        b'{"jsonrpc":"2.0","id":true,"result":{}}',
        b'{"jsonrpc":"2.0","id":1,"result":1}',
        b'{"jsonrpc":"2.0","id":1,"result":null}',
        b'{"id":1,"result":{}}',
        b'{"jsonrpc":"2.0","id":1,"error":"no"}',
        b'{"jsonrpc":"2.0","id":1,"error":{"code":"1","message":"m"}}',
        b'{"jsonrpc":"2.0","id":1,"error":{"code":true,"message":"m"}}',
        b'{"jsonrpc":"2.0","id":1,"error":{"code":1}}',
        b'{"jsonrpc":"2.0","id":[],"error":{"code":1,"message":"m"}}',
        b'{"jsonrpc":"2.0","method":5,"params":{}}',
        b'{"jsonrpc":"2.0","method":"queued","params":[]}',
    ],
)
def test_nonsense_from_a_node_manager_is_the_one_error(line: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        parse_incoming(line)


# -- a kernel and its checkpoint helper --------------------------------------------------------

SECONDS = st.floats(0, 86400, allow_nan=False)
UUIDS = st.uuids().map(lambda uuid: f"GPU-{uuid}")
TARGETS = st.builds(Target, st.integers(1, 2**31 - 1), st.integers(0, 2**63 - 1))
MAPS = st.lists(UUIDS, unique=True, max_size=4).flatmap(
    lambda gpus: st.permutations(gpus).map(lambda new: dict(zip(gpus, new, strict=True)))
)


def any_of(kind: type, **own: Any) -> st.SearchStrategy[Any]:
    """Each field as its type says, but for these."""
    return st.builds(kind, **{one.name: own.get(one.name, ...) for one in fields(kind)})


TIMES = dict.fromkeys(("deadline", "lock_timeout", "hold"), SECONDS)
REQUESTS = any_of(Request, target=TARGETS, gpu_map=MAPS, **TIMES).filter(
    lambda request: not request.mistake()
)
OUTCOMES = any_of(Outcome, seconds=st.dictionaries(st.text(max_size=8), SECONDS, max_size=4))
GPUS = st.lists(any_of(SeenGpu, uuid=UUIDS), max_size=3).map(tuple)
ABILITIES = any_of(Ability, cuda=st.none() | st.integers(0, 10**9), gpus=GPUS)


@given(REQUESTS)
def test_every_request_survives(request: Request) -> None:
    assert decode_request(encode_request(request)) == request


@given(OUTCOMES | ABILITIES)
def test_every_answer_survives(answer: Outcome | Ability) -> None:
    assert decode_answer(encode_answer(answer)) == answer


def test_what_is_wrong_with_a_request_is_named() -> None:
    request = Request(Action.RESUME, Target(1, 1), gpu_map={"GPU-a": "GPU-c", "GPU-b": "GPU-c"})
    with pytest.raises(RemoteProtocolError, match="become one"):
        decode_request(encode_request(request))
    probe = Request(Action.PROBE)
    newer = {**json.loads(encode_request(probe)), "version": VERSION + 1}
    with pytest.raises(RemoteProtocolError, match="other release"):
        decode_request(json.dumps(newer).encode())
    assert decode_request(encode_request(probe)).target is None
    with pytest.raises(RemoteProtocolError, match="needs a target"):
        decode_request(encode_request(Request(Action.PARK)))
    with pytest.raises(RemoteProtocolError, match="not of a tree"):
        decode_request(encode_request(Request(Action.LOCK, Target(1, 1), tree=True)))


# -- documents --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "field", "words"),
    [
        (doc.Lease, "state", get_args(DisplayState)),
        (doc.Lease, "phase", model.LeasePhase),
        (doc.Lease, "activity", model.Activity),
        (doc.Lease, "kind", model.TaskKind),
        (doc.Lease, "priority_class", model.PriorityClass),
        (doc.Budget, "level", model.BudgetLevel),
        (doc.Squatter, "kind", model.FlagKind),
        (doc.Estimate, "basis", Basis),
    ],
)
def test_the_words_of_a_field_are_the_policys(kind: Any, field: str, words: Any) -> None:
    said = shapes(kind)[field].mark(Words)
    assert said is not None
    assert set(said) == {getattr(word, "value", word) for word in words}


def test_what_is_private_is_said_where_it_is_declared_and_can_be_null() -> None:
    hidden = private(doc.Lease)
    assert {"id", "environment", "name", "path", "pid"} <= set(hidden)
    assert all(shapes(doc.Lease)[name].null for name in hidden)


def test_a_schema_has_bounds_words_null_and_what_may_be_left_out() -> None:
    lease = components({"Lease": doc.Lease})["Lease"]
    newer = {"inherited", "may_be_taken_at", "pauses", "reserve", "turn_expected"}
    newer |= {"interrupted", "progress", "promise", "compute", "job", "job_kind", "memory_most"}
    newer |= {"turn_pinned_until", "says", "serving"}
    assert set(lease["required"]) == set(lease["properties"]) - newer
    rows = lease["properties"]
    assert rows["turn_place"]["type"] == ["integer", "null"]
    assert rows["turn_place"]["minimum"] == 1
    assert rows["turn"]["enum"][-1] is None
    assert fields_of(calls.PARAMS[Method.HISTORY])["limit"]["maximum"] == 1000
    both = components({"Live": doc.Live})["Live"]["oneOf"]
    assert len(both) == len(get_args(doc.Live))


def test_a_client_loads_no_declaration() -> None:
    """Those who only want a GPU read answers by the names of their parts."""
    code = (
        "import sys, jupyter_gpushare.client.acquire, jupyter_gpushare.client.words.render\n"
        "print([n for n in sys.modules if n.rpartition('.')[2] in "
        "('documents', 'shapes', 'reading', 'calls') and n.startswith('jupyter_gpushare')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
