"""What a kernel and its checkpoint helper say arrives as it was said, and nonsense is refused."""

from __future__ import annotations

import json
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpushare.protocol.checkpoint import (
    VERSION,
    Ability,
    Action,
    Cause,
    Outcome,
    Request,
    Result,
    SeenGpu,
    State,
    Target,
    decode_answer,
    decode_request,
    encode_answer,
    encode_request,
)
from jupyter_gpushare.protocol.errors import RemoteProtocolError

SECONDS = st.floats(0, 86400, allow_nan=False)
UUIDS = st.uuids().map(lambda uuid: f"GPU-{uuid}")
TARGETS = st.builds(Target, st.integers(1, 2**31 - 1), st.integers(0, 2**63 - 1))
MAPS = st.lists(UUIDS, unique=True, max_size=4).flatmap(
    lambda gpus: st.permutations(gpus).map(lambda new: dict(zip(gpus, new, strict=True)))
)
REQUESTS = st.builds(Request, st.sampled_from(Action), TARGETS, SECONDS, SECONDS, MAPS)
OUTCOMES = st.builds(
    Outcome,
    st.sampled_from(Result),
    st.none() | st.sampled_from(Cause),
    st.text(),
    st.none() | st.sampled_from(State),
    st.dictionaries(st.text(max_size=8), SECONDS, max_size=4),
    st.none() | st.text(),
    st.booleans(),
)
GPUS = st.builds(SeenGpu, UUIDS, st.text(), st.none() | st.booleans(), st.none() | st.booleans())
ABILITIES = st.builds(
    Ability,
    st.booleans(),
    st.text(),
    st.none() | st.sampled_from(Cause),
    st.booleans(),
    st.text(),
    st.none() | st.integers(0, 10**9),
    st.none() | st.text(),
    st.none() | st.text(),
    st.lists(GPUS, max_size=3).map(tuple),
    st.lists(st.text(), max_size=3).map(tuple),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)


@given(REQUESTS)
def test_every_request_survives(request: Request) -> None:
    assert decode_request(encode_request(request)) == request


@given(OUTCOMES | ABILITIES)
def test_every_answer_survives(answer: Outcome | Ability) -> None:
    assert decode_answer(encode_answer(answer)) == answer


@given(st.binary(max_size=200))
def test_any_bytes_are_understood_or_refused(line: bytes) -> None:
    for read in (decode_request, decode_answer):
        with pytest.raises(RemoteProtocolError):
            read(line)


@given(REQUESTS, st.data())
def test_one_wrong_value_never_does_more_than_refuse(request: Request, data: st.DataObject) -> None:
    message = json.loads(encode_request(request))
    name = data.draw(st.sampled_from(sorted(message)))
    message[name] = data.draw(JSON)
    line = json.dumps(message).encode()
    try:
        understood = decode_request(line)
    except RemoteProtocolError:
        return
    assert 0 <= understood.deadline <= 86400
    assert understood.action is Action.PROBE or understood.target is not None


@given(OUTCOMES | ABILITIES, st.data())
def test_one_wrong_value_in_an_answer_never_does_more_than_refuse(
    answer: Outcome | Ability, data: st.DataObject
) -> None:
    message = json.loads(encode_answer(answer))
    (kind,) = message
    name = data.draw(st.sampled_from([field.name for field in fields(answer)]))
    message[kind][name] = data.draw(JSON)
    try:
        understood = decode_answer(json.dumps(message).encode())
    except RemoteProtocolError:
        return
    assert type(understood) is type(answer)


def test_two_gpus_cannot_become_one() -> None:
    request = Request(Action.RESUME, Target(1, 1), gpu_map={"GPU-a": "GPU-c", "GPU-b": "GPU-c"})
    with pytest.raises(RemoteProtocolError, match="become one"):
        decode_request(encode_request(request))


def test_another_version_is_named() -> None:
    message = json.loads(encode_request(Request(Action.PROBE)))
    message["version"] = VERSION + 1
    with pytest.raises(RemoteProtocolError, match="other release"):
        decode_request(json.dumps(message).encode())


def test_only_a_probe_needs_no_target() -> None:
    assert decode_request(encode_request(Request(Action.PROBE))).target is None
    with pytest.raises(RemoteProtocolError, match="needs a target"):
        decode_request(encode_request(Request(Action.PARK)))
