"""Every operation answers as the OpenAPI document says, whatever it is sent.

schemathesis against a real server.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, assume, given, settings
from schemathesis import GenerationMode
from support.jupyter import TOKEN, Home, Server

from jupyter_gpushare.link import openapi


@pytest.fixture(scope="module")
def served() -> Iterator[Server]:
    with Home.make() as home:
        server = home.serve()
        server.wait_connected()
        yield server


def without_security() -> dict[str, Any]:
    """Return the document for generating: every request here carries the token."""
    document = openapi.document()
    del document["security"]
    return document


SCHEMA = schemathesis.openapi.from_dict(without_security())
OPERATIONS = {
    f"{operation.method.upper()} {operation.path}": operation
    for operation in (result.ok() for result in SCHEMA.get_all_operations())
}


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("name", OPERATIONS)
def test_the_document_holds(name: str, mode: GenerationMode, served: Server) -> None:
    operation = OPERATIONS[name]
    if mode is GenerationMode.NEGATIVE and not (operation.query or operation.body):
        pytest.skip("no wrong input can be made")

    @settings(max_examples=20, suppress_health_check=list(HealthCheck), database=None)
    @given(case=operation.as_strategy(generation_mode=mode))
    def hold(case: Any) -> None:
        # Unknown query arguments are no error: browsers add one against their caches.
        assume(set(case.query or {}) <= {parameter.name for parameter in operation.query})
        response = case.call(
            base_url=served.url.rstrip("/"), headers={"Authorization": f"token {TOKEN}"}
        )
        # A node manager is connected: there is an answer, or a reason in the request.
        assert response.status_code < 500, response.text
        case.validate_response(response)

    hold()


def test_it_is_served(served: Server) -> None:
    assert served.gpushare("openapi.json") == openapi.document()


def test_what_is_no_wish_is_refused(served: Server) -> None:
    """What each field may not be is in tests/protocol/test_messages.py."""
    put = "gpushare/api/quotas/alice"
    for body in [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"gpus": 1e400}',
        b'{"gpus": NaN}',
        b'{"gpus": 1, "memory": 0}',
        b'{"gpus": 1, "memory": 1' + b"0" * 5000 + b"}",
        b'{"gpus": 1, "wieght": 1}',
        b'{"gpus": 1, "burst_memory": "much"}',
        b'{"gpus": ' + b"[" * 100_000,
    ]:
        answer = served.api.put(put, content=body)
        assert answer.status_code == 400, (body[:40], answer.text)
        assert answer.json()["reason"] == "bad_request"
        assert len(answer.json()["message"]) < 500
    # What was asked for stands in the log, too, and may well be that word.
    assert "Traceback (most recent call last)" not in served.log.read_text(errors="replace")
