"""What a kernel and its checkpoint helper say arrives as it was said, and nonsense is refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies as st

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


@given(REQUESTS)
def test_every_request_survives(request: Request) -> None:
    assert decode_request(encode_request(request)) == request


@given(OUTCOMES | ABILITIES)
def test_every_answer_survives(answer: Outcome | Ability) -> None:
    assert decode_answer(encode_answer(answer)) == answer


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
