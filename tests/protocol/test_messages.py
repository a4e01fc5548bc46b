"""The parser of calls and answers: any bytes give a message or the one typed error."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpushare.protocol import calls, messages
from jupyter_gpushare.protocol.calls import Call, LeftOut, QuotaName, parse_call
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

CODES = {PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS}
ODD_TEXTS = ["", "\0", "a\0b", "\ud800", "x\udfff", "x" * 5000, "💡", "\u2028", " "]
# Only what JSON can carry; floats include what "1e999" becomes.
ODD = (
    st.sampled_from(
        [*ODD_TEXTS, 10**400, -(10**400), 2**63, -1, 0, True, False, None, 1e999, [], {}]
    )
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec=None), max_size=300)
    | st.lists(st.integers(), max_size=2)
)
NAMES = st.sampled_from(
    [
        "protocol",
        "client",
        "name",
        "version",
        "token",
        "task",
        "kind",
        "kernel_id",
        "path",
        "request_id",
        "gpus",
        "memory",
        "priority_class",
        "wait",
        "lease",
        "secret",
        "state",
        "since",
        "environment",
        "limit",
        "pid",
        "weight",
        "reason",
    ]
)
ODD_PARAMS = st.dictionaries(NAMES, ODD | st.dictionaries(NAMES, ODD, max_size=4), max_size=6)

# A good call of every method: (params as sent, params as read).
GOOD: dict[Method, tuple[Mapping[str, Any], object]] = {
    Method.HELLO: (
        {"protocol": 1, "client": {"name": "n", "version": "1"}, "token": "t"},
        calls.Hello(1, calls.Client("n", "1"), "t"),
    ),
    Method.REQUEST: (
        {
            "task": {"name": "nb", "kind": "kernel", "kernel_id": "k", "path": "/nb.ipynb"},
            "request_id": "r",
            "gpus": 2,
            "memory": 2**33,
            "priority_class": "batch",
            "wait": False,
        },
        calls.RequestParams(
            calls.TaskParams("nb", "kernel", "k", "/nb.ipynb"), "r", 2, 2**33, "batch", False
        ),
    ),
    Method.ATTACH: ({"lease": "l", "secret": "s"}, calls.AttachParams("l", "s")),
    Method.HEARTBEAT: ({"lease": "l"}, calls.LeaseParams("l")),
    Method.ACTIVITY: ({"lease": "l", "state": "idle"}, calls.ActivityParams("l", "idle")),
    Method.PARKING: ({"lease": "l", "memory": 5}, calls.ParkingParams("l", 5)),
    Method.PARKED: (
        {"lease": "l", "rung": "driver", "memory": 5, "movable": "same", "seconds": 1.5},
        calls.ParkedParams("l", "driver", 5, "same", 1.5),
    ),
    Method.GAVE: (
        {"lease": "l", "give": "lift", "limits": [{"uuid": "GPU-1", "memory": 5}], "live": False},
        calls.GaveParams("l", give="lift", limits=(calls.GpuLimit("GPU-1", 5),), live=False),
    ),
    Method.RESTORED: ({"lease": "l", "seconds": 2.0}, calls.RestoredParams("l", 2.0)),
    Method.PIN: ({"lease": "l", "seconds": 60}, calls.PinParams("l", 60.0)),
    Method.ABILITY: (
        {"lease": "l", "rung": "storage", "why": "no driver"},
        calls.AbilityParams("l", "storage", "no driver"),
    ),
    Method.STOPPABLE: ({"lease": "l", "can": True}, calls.StoppableParams("l", True)),
    Method.PROGRESS: (
        {"lease": "l", "done": 40, "total": None, "seconds": 0.5},
        calls.ProgressParams("l", 40, None, 0.5),
    ),
    Method.PROMISE: (
        {"lease": "l", "deadline": 600, "rate": 2.0},
        calls.PromiseParams("l", 600, 2.0),
    ),
    Method.MEMORY: (
        {
            "lease": "l",
            "figures": [{"uuid": "GPU-0", "persistent": 3, "temporary": 2}],
            "steps": 7,
            "can_take_turns": True,
        },
        calls.MemoryParams("l", (calls.GpuMemory("GPU-0", 3, 2, 0),), 7, True),
    ),
    Method.TURN_ASK: ({"lease": "l", "number": 3}, calls.TurnParams("l", 3)),
    Method.TURN_DONE: ({"lease": "l"}, calls.TurnParams("l")),
    Method.TURN_LOCK: ({"lease": "l"}, calls.LeaseParams("l")),
    Method.TURN_LOCKED: ({"lease": "l"}, calls.LeaseParams("l")),
    Method.KEPT: ({"lease": "l", "reason": "why"}, calls.KeptParams("l", "why")),
    Method.RESUME: ({"lease": "l", "wait": False}, calls.ResumeParams("l", False)),
    Method.RELEASE: ({"request_id": "r"}, calls.ReleaseParams(None, "r")),
    Method.STATUS: ({}, calls.StatusParams(0)),
    Method.WATCH: ({}, calls.NoParams()),
    Method.USAGE: ({"since": 60, "environment": "e"}, calls.UsageParams(60.0, "e")),
    Method.USAGE_DAILY: (
        {"days": 7, "utc_offset": -3600},
        calls.DailyUsageParams(7, -3600.0, None),
    ),
    Method.READINGS: ({"since": 60}, calls.ReadingsParams(60.0)),
    Method.PREDICT: (
        {
            "task": {"name": "n", "kind": "process"},
            "framework": "jax",
            "operations": [
                {"kind": "MatMul", "largest": 4, "count": 3, "flops": 2**70, "bytes": 1.5}
            ],
            **{"batch": 8, "iterations": 9, "inputs": 7, "peak": 6},
            "training": False,
        },
        calls.PredictParams(
            calls.TaskParams("n", "process", None, None),
            "jax",
            (calls.Operations("MatMul", 4, 3, float(2**70), 1.5),),
            *(8, 9, 7, 6),
            training=False,
        ),
    ),
    Method.HISTORY: ({"limit": 7}, calls.HistoryParams(7, None)),
    Method.TASK_ENDED: ({"kernel_id": "k", "pid": 9}, calls.TaskEndedParams("k", 9)),
    Method.TASK_RENAMED: (
        {"kernel_id": "k", "name": "b.ipynb", "path": "/b.ipynb"},
        calls.TaskRenamedParams("k", "b.ipynb", "/b.ipynb"),
    ),
    Method.QUOTA_LIST: ({}, calls.NoParams()),
    Method.QUOTA_SET: (
        {"environment": "e", "gpus": 1, "memory": None, "weight": 2, "burst_memory": 0.5},
        calls.QuotaParams(QuotaName("e"), 1, None, 2.0, LeftOut.KEEP, LeftOut.KEEP, 0.5),
    ),
    Method.QUOTA_UNSET: ({"environment": "e"}, QuotaName("e")),
    Method.LEASE_REVOKE: ({"lease": "l", "reason": "why"}, calls.RevokeParams("l", "why")),
    Method.NODE_DRAIN: ({"reason": "cooling"}, calls.NodeDrainParams("cooling")),
    Method.NODE_RESUME: ({}, calls.NoParams()),
    Method.POOL_FOLLOW: ({"pool": "p"}, calls.FollowParams("p")),
    Method.POOL_LEND: (
        {
            "as_of": {"boot_id": "b", "at": 7},
            "seconds": 120,
            "complete": True,
            "budgets": [
                {"environment": "e", "gpus": 1, "quota": {"gpus": 2, "memory": None}, "why": "w"}
            ],
        },
        calls.LendParams(
            calls.AsOf("b", 7.0),
            120.0,
            (calls.LentParams("e", 1, calls.QuotaFields(2, None), why="w"),),
            True,
        ),
    ),
    Method.POOL_HINT: (
        {"hints": [{"environment": "e", "host": "b", "gpus": 1, "kind": "A", "text": "there"}]},
        calls.HintsParams((calls.HintParams("e", "b", 1, "A", "there"),)),
    ),
    Method.POOL_CERTIFY: (
        {"certificates": "c", "authorities": "a"},
        calls.CertifyParams("c", "a"),
    ),
    Method.LEDGER_BACKUP: ({"offset": 7}, calls.BackupParams(7)),
    Method.LEDGER_CHECK: ({}, calls.NoParams()),
    Method.LEDGER_VACUUM: ({}, calls.NoParams()),
    Method.GPU_DRAIN: ({"gpu": "GPU-1", "reason": "a fan"}, calls.DrainParams("GPU-1", "a fan")),
    Method.GPU_RESUME: ({"gpu": "GPU-1"}, calls.GpuParams("GPU-1")),
}


def line_of(method: Method, params: object, call_id: object = 1) -> bytes:
    text = json.dumps({"jsonrpc": "2.0", "id": call_id, "method": method.value, "params": params})
    # What JSON can say of it: a number too large for a float.
    return text.replace("Infinity", "1e999").encode()


def result_of(parse: Callable[[bytes], object], line: bytes) -> object:
    """What came out, or the one error that may; every other exception fails the test."""
    try:
        return parse(line)
    except RemoteProtocolError as error:
        return error


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


def test_a_weight_that_is_left_out_is_not_one() -> None:
    call = parse_call(line_of(Method.QUOTA_SET, {"environment": "e", "gpus": 1}))
    assert isinstance(call.params, calls.QuotaParams)
    assert call.params.weight is LeftOut.KEEP
    refusal(line_of(Method.QUOTA_SET, {"environment": "e", "gpus": 1, "weight": None}))


# -- any bytes at all -------------------------------------------------------------


@given(st.binary(max_size=200))
def test_any_bytes_give_a_message_or_the_one_error(line: bytes) -> None:
    for parse in (parse_call, parse_incoming):
        result = result_of(parse, line)
        assert not isinstance(result, RemoteProtocolError) or result.code in CODES


@given(
    st.dictionaries(
        st.sampled_from(["jsonrpc", "id", "method", "params", "result", "error", "x"]),
        ODD
        | st.just("2.0")
        | st.sampled_from([method.value for method in Method])
        | ODD_PARAMS
        | st.fixed_dictionaries({"code": ODD, "message": ODD, "data": ODD | ODD_PARAMS}),
    )
)
def test_any_object_gives_a_message_or_the_one_error(message: dict[str, Any]) -> None:
    line = json.dumps(message).encode()
    for parse in (parse_call, parse_incoming):
        result = result_of(parse, line)
        if isinstance(result, RemoteProtocolError):
            assert result.code in CODES
            encode({"said": str(result)})


@given(st.sampled_from(Method), ODD_PARAMS)
def test_odd_params_of_every_method_are_read_or_refused(
    method: Method, params: dict[str, Any]
) -> None:
    result = result_of(parse_call, line_of(method, params, "my-id"))
    if isinstance(result, RemoteProtocolError):
        assert result.code == INVALID_PARAMS
        assert result.call_id == "my-id", "the caller must know which call was wrong"
        assert str(result).startswith(method.value)
    else:
        assert isinstance(result, Call)
        assert result.method is method
        for value in texts(result.params):
            value.encode()
            assert "\0" not in value


def texts(params: object) -> list[str]:
    """All texts in params that were read."""
    values = [getattr(params, name) for name in type(params).__slots__]
    inner = [v for v in values if isinstance(v, calls.Client | calls.TaskParams | QuotaName)]
    return [v for v in values if isinstance(v, str)] + [t for v in inner for t in texts(v)]


@given(st.sampled_from(Method), st.data())
def test_one_odd_value_in_a_good_call(method: Method, data: st.DataObject) -> None:
    params = json.loads(json.dumps(GOOD[method][0]))
    places: list[tuple[dict[str, Any], str]] = [(params, name) for name in params]
    places += [(v, name) for v in params.values() if isinstance(v, dict) for name in v]
    if places:
        where, name = data.draw(st.sampled_from(places))
        where[name] = data.draw(ODD)
    result = result_of(parse_call, line_of(method, params))
    assert not isinstance(result, RemoteProtocolError) or result.code == INVALID_PARAMS


# -- round trips --------------------------------------------------------------------


@pytest.mark.parametrize("method", Method)
def test_a_good_call_of_every_method_comes_through(method: Method) -> None:
    sent, read = GOOD[method]
    assert parse_call(encode(messages.call(7, method, sent))) == Call(7, method, read)
    # A newer client may say more.
    more = {**sent, "from_the_future": [1, {"a": None}]}
    assert parse_call(encode(messages.call("x", method, more))) == Call("x", method, read)


IDS = st.integers(-(2**53), 2**53) | st.text(st.characters(codec=None), max_size=128)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(IDS, PLAIN)
def test_answers_come_through(call_id: int | str, result: Any) -> None:
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


def test_every_reason_has_a_meaning_for_the_docs() -> None:
    assert set(MEANING) == set(Reason)


# -- defaults and bounds ------------------------------------------------------------


def test_what_a_request_need_not_say() -> None:
    read = parse_call(line_of(Method.REQUEST, {"task": {"name": "n", "kind": "process"}})).params
    assert read == calls.RequestParams(
        calls.TaskParams("n", "process", None, None), None, 1, None, None, True
    )
    assert parse_call(line_of(Method.USAGE, {})).params == calls.UsageParams(7 * 86400.0, None)
    assert parse_call(line_of(Method.USAGE_DAILY, {})).params == calls.DailyUsageParams(
        30, None, None
    )
    assert parse_call(line_of(Method.READINGS, {})).params == calls.ReadingsParams(900.0)
    assert parse_call(line_of(Method.HISTORY, {})).params == calls.HistoryParams(50, None)
    hello = {"protocol": 1, "client": {"name": "n", "version": "v"}}
    assert parse_call(line_of(Method.HELLO, hello)).params.token is None


def test_a_request_may_be_for_all_of_the_quota() -> None:
    task = {"name": "n", "kind": "process"}
    read = parse_call(line_of(Method.REQUEST, {"task": task, "gpus": "quota"})).params
    assert isinstance(read, calls.RequestParams)
    assert read.gpus is None


def test_params_may_be_left_out() -> None:
    assert parse_call(b'{"jsonrpc":"2.0","id":1,"method":"status"}').params == calls.StatusParams(0)


#: Wrong values of fields, each in a call that is good but for it.
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
    Method.ATTACH: {
        "secret": [5],
        "lease": ["\udc80"],
    },
    Method.HEARTBEAT: {"lease": [None]},
    Method.ACTIVITY: {"state": ["lazy", None]},
    Method.PARKED: {
        "lease": [1],
        "rung": ["lift"],
        "memory": [-1],
    },
    Method.PARKING: {"memory": [None]},
    Method.RESTORED: {"seconds": ["long"]},
    Method.PIN: {"seconds": [-1]},
    Method.ABILITY: {
        "rung": [None],
        "why": ["w" * 1025],
    },
    Method.MEMORY: {
        "figures": [
            None,
            [1],
            [{"uuid": "GPU-0", "persistent": -1, "temporary": 0}],
            [{"uuid": "GPU-0", "persistent": 1}],
            [{"uuid": "u", "persistent": 1, "temporary": 1}] * 1025,
        ],
        "steps": [1.5],
        "can_take_turns": ["yes"],
    },
    Method.TURN_ASK: {
        "lease": [None],
        "number": [-1],
    },
    Method.TURN_DONE: {
        "lease": [7],
        "number": ["three"],
    },
    Method.TURN_LOCK: {"lease": [""]},
    Method.TURN_LOCKED: {"lease": [7]},
    Method.GAVE: {
        "limits": [
            5,
            [5],
            [{"uuid": "GPU-1"}],
            [{"uuid": 5, "memory": 5}],
            [{"uuid": "GPU-1", "memory": 5}] * 1025,
        ],
    },
    Method.KEPT: {"reason": [None, "r" * 1025]},
    Method.RESUME: {"wait": [0]},
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
        "weight": [0, "2"],
    },
    Method.USAGE: {"since": [-1, 1e999, 10**400, True, None]},
    Method.USAGE_DAILY: {
        "days": [0, 367],
        "utc_offset": [50401],
    },
    Method.READINGS: {"since": [-1]},
    Method.HISTORY: {"limit": [0, 1001]},
    Method.TASK_ENDED: {
        "pid": [0],
        "kernel_id": [""],
    },
    Method.QUOTA_UNSET: {"environment": [["e"]]},
    Method.LEASE_REVOKE: {"reason": ["", "r" * 1025]},
    Method.GPU_DRAIN: {"reason": ["two\nlines", "\u202etxet", "r" * 257]},
    Method.GPU_RESUME: {"gpu": [1]},
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
    error = refusal(line_of(method, {**GOOD[method][0], **change}, "id"))
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


@pytest.mark.parametrize("params", [None, [], "x", 3, [{"lease": "l"}]])
def test_params_must_be_an_object(params: object) -> None:
    assert refusal(line_of(Method.HEARTBEAT, params)).code == INVALID_PARAMS


def test_the_last_of_duplicate_keys_counts() -> None:
    line = b'{"jsonrpc":"2.0","id":1,"id":2,"method":"hello","method":"status"}'
    assert parse_call(line) == Call(2, Method.STATUS, calls.StatusParams(0))


@pytest.mark.parametrize(
    "line",
    [
        b"{}",
        b'{"jsonrpc":"2.0"}',
        b'{"jsonrpc":"2.0","id":1}',
        b'{"jsonrpc":"2.0","result":1}',
        b'{"jsonrpc":"2.0","id":true,"result":1}',
        b'{"id":1,"result":1}',
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
