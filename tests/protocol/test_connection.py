"""Both ends of a connection understand each other, however the bytes are cut.

The ends talk to each other without any socket.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from jupyter_gpushare.protocol import messages
from jupyter_gpushare.protocol.calls import Call
from jupyter_gpushare.protocol.connection import ClientConnection
from jupyter_gpushare.protocol.errors import (
    INVALID_REQUEST,
    LocalProtocolError,
    Reason,
    RemoteProtocolError,
)
from jupyter_gpushare.protocol.framing import MAX_LINE, encode
from jupyter_gpushare.protocol.messages import Answer, ErrorAnswer, Method, Notice
from jupyter_gpushare.protocol.nodeside import Phase, ServerConnection

CLIENT = {"name": "test", "version": "0"}


def lines(server: ServerConnection, data: bytes) -> Iterator[bytes]:
    """Whole lines, as the transport takes them."""
    server.framer.push(data)
    return iter(server.framer.pop, None)


class Ends:
    """A client and a server joined by two pipes of bytes that are cut as the test likes."""

    def __init__(self, cut: int = 1 << 30) -> None:
        self.client = ClientConnection()
        self.server = ServerConnection()
        self.cut = cut

    def to_server(self, data: bytes) -> list[Call]:
        received = []
        for piece in self._pieces(data):
            received += [self.server.receive(line) for line in lines(self.server, piece)]
        return received

    def to_client(self, *sent: dict[str, Any]) -> list[messages.Incoming]:
        data = b"".join(encode(message) for message in sent)
        return [one for piece in self._pieces(data) for one in self.client.receive(piece)]

    def greet(self) -> None:
        call_id, line = self.client.call(Method.HELLO, protocol=1, client=CLIENT)
        (hello,) = self.to_server(line)
        assert hello.id == call_id
        assert self.server.phase is Phase.GREETING
        self.server.move(Phase.READY)
        assert self.to_client(messages.answer(call_id, {"protocol": 1})) == [
            Answer(call_id, {"protocol": 1})
        ]

    def _pieces(self, data: bytes) -> list[bytes]:
        return [data[at : at + self.cut] for at in range(0, len(data), self.cut)]


@pytest.mark.parametrize("cut", [1, 7, 1 << 30])
def test_a_conversation(cut: int) -> None:
    ends = Ends(cut)
    ends.greet()
    ask, line = ends.client.call(
        Method.REQUEST, task={"name": "n", "kind": "process"}, memory=None, gpus=2
    )
    look, more = ends.client.call(Method.STATUS)
    request, status = ends.to_server(line + more)
    assert (request.id, request.method, request.params.gpus) == (ask, Method.REQUEST, 2)
    assert (status.id, status.method) == (look, Method.STATUS)
    # Answers may come in any order, between notifications.
    got = ends.to_client(
        messages.notification(Notice.QUEUED, {"position": 1}),
        messages.answer(look, {"gpus": []}),
        messages.error_answer(ask, Reason.OVER_QUOTA, "Too much.", data={"quota": 1}),
    )
    notice, answer, error = got
    assert isinstance(notice, messages.Notification)
    assert notice.params == {"position": 1}
    assert answer == Answer(look, {"gpus": []})
    assert isinstance(error, ErrorAnswer)
    assert (error.id, error.error.reason) == (ask, Reason.OVER_QUOTA)


def refused(ends: Ends, method: Method, why: str, **params: Any) -> RemoteProtocolError:
    """What the server says of a call at a wrong time, or of a wrong one; it stays where it was."""
    before = ends.server.phase
    call_id, line = ends.client.call(method, **params)
    with pytest.raises(RemoteProtocolError, match=why) as caught:
        ends.to_server(line)
    assert caught.value.call_id == call_id
    assert ends.server.phase is before
    return caught.value


def test_hello_goes_before_all_else_and_is_said_once() -> None:
    ends = Ends()
    error = refused(ends, Method.STATUS, "Say hello first")
    assert (error.reason, error.code) == (Reason.NOT_ALLOWED, INVALID_REQUEST)
    malformed = refused(ends, Method.HELLO, "protocol", protocol="one", client=CLIENT)
    assert malformed.reason is Reason.BAD_REQUEST
    ends.greet()
    # The refused call's answer is still awaited, and the client is none the worse.
    (answer,) = ends.to_client(messages.error_answer(error.call_id, error.reason, "no"))
    assert answer.id == error.call_id
    again = refused(ends, Method.HELLO, "said already", protocol=1, client=CLIENT)
    assert again.reason is Reason.NOT_ALLOWED


def test_an_answer_that_nobody_waits_for_is_dropped() -> None:
    ends = Ends()
    ends.greet()
    call_id, _ = ends.client.call(Method.STATUS)
    ends.client.forget(call_id)
    assert ends.to_client(messages.answer(call_id, {}), messages.answer("strange", {})) == []
    again, _ = ends.client.call(Method.STATUS)
    assert ends.to_client(messages.answer(again, {}), messages.answer(again, {})) == [
        Answer(again, {})
    ]


def test_an_error_without_an_id_is_about_the_connection() -> None:
    ends = Ends()
    with pytest.raises(RemoteProtocolError, match="too many connections"):
        ends.to_client(
            messages.error_answer(None, Reason.RATE_LIMITED, "There are too many connections.")
        )


def test_a_client_cannot_send_an_over_long_line_and_goes_on() -> None:
    ends = Ends()
    with pytest.raises(LocalProtocolError):
        ends.client.call(Method.REQUEST, task={"name": "x" * MAX_LINE, "kind": "process"})
    ends.greet()


def test_a_client_takes_a_status_longer_than_what_it_may_send() -> None:
    ends = Ends(4096)
    ends.greet()
    call_id, _ = ends.client.call(Method.STATUS)
    long = {"leases": ["x" * 100] * 10_000}
    assert ends.to_client(messages.answer(call_id, long)) == [Answer(call_id, long)]
