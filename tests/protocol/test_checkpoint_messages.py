"""What a kernel and its checkpoint helper say arrives as it was said, and nonsense is refused."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given, strategies as st

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
from jupyter_gpushare.protocol.errors import RemoteProtocolError

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
REQUESTS = any_of(Request, target=TARGETS, gpu_map=MAPS, **TIMES)
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
