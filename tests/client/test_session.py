"""A node manager that hangs, lies, stutters or dies holds a process up for a bounded time only."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from support.node import until
from support.scripted_node import GPU, LEASE, SECRET, Script, ScriptedNode, Visitor, plays

from jupyter_gpushare.client.errors import LeaseLost, NodeUnavailable
from jupyter_gpushare.client.session.session import Link, Session
from jupyter_gpushare.protocol.calls import Call
from jupyter_gpushare.protocol.errors import Reason
from jupyter_gpushare.protocol.messages import Method, Notice

BOUND = 0.6  # seconds: the answer time-out where it is what is tested
SLACK = 30.0  # a busy machine may be slow; a session that hangs takes for ever


class Recorder:
    """What the session tells its owner."""

    def __init__(self) -> None:
        self.lost: list[tuple[str, str]] = []
        self.queued: list[Mapping[str, Any]] = []
        self.on_waiting: Callable[[], None] = lambda: None

    def on_lost(self, lease: str, message: str, _released: bool) -> None:
        self.lost.append((lease, message))


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@contextlib.contextmanager
def opened(
    node: ScriptedNode,
    recorder: Recorder,
    timeout: float = 20.0,
    outage: float = 30.0,
    *,
    opens: bool = True,
) -> Iterator[Session]:
    path = os.fspath(node.socket)
    session = Session(path, lambda: None, 60.0, outage=outage, on_lost=recorder.on_lost)
    if opens:
        session.open()
    session._timeout = timeout  # of a test's calls: a busy machine may be slow to say hello
    try:
        yield session
    finally:
        session.close()


def ask(session: Session, recorder: Recorder, wait_timeout: float = 0.0) -> dict[str, Any]:
    params = {"request_id": "r1", "task": {"name": "t", "kind": "process"}}
    return session.request(
        params, recorder.queued.append, lambda: recorder.on_waiting(), wait_timeout
    )


# -- a node manager that is no use -------------------------------------------------------


def says(data: bytes) -> Script:
    return lambda visitor: visitor.send(data)


def expects(method: Method) -> Script:
    return lambda visitor: visitor.expect(method)


def again_and_again(part: Script) -> Script:
    def script(visitor: Visitor) -> None:
        visitor.read()
        with contextlib.suppress(OSError):
            for _ in range(1000):
                part(visitor)
                time.sleep(0.02)

    return script


BAD_HELLOS: dict[str, Script] = {
    "hangs": Visitor.hang,
    "closes": plays(),
    "closes after hello": Visitor.read,
    "nonsense": says(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
    "not JSON-RPC": says(b'{"id": 1, "result": {}}\n'),
    "a result that is no object": plays(
        lambda visitor: visitor.answer(visitor.read(), [1, 2]), Visitor.hang
    ),
    "half a line": plays(Visitor.read, says(b'{"jsonrpc": "2.')),
    "no newline ever": says(b"x" * (17 * 2**20)),
    "binary": says(bytes(range(256)) * 8 + b"\n"),
    "trickle": again_and_again(says(b" ")),
    "notices only": again_and_again(lambda it: it.notify(Notice.CHANGED, {"status": {}})),
    "refuses": lambda visitor: visitor.refuse(
        visitor.read(), Reason.NOT_ALLOWED, "This token is not known."
    ),
}


@pytest.mark.parametrize("kind", BAD_HELLOS)
def test_connecting_is_bounded(kind: str, recorder: Recorder) -> None:
    before = threading.active_count()
    with ScriptedNode(BAD_HELLOS[kind]) as node:
        session = Session(os.fspath(node.socket), lambda: None, BOUND)
        begun = time.monotonic()
        with pytest.raises(NodeUnavailable) as caught:
            session.open(patience=BOUND)
        assert time.monotonic() - begun < BOUND + SLACK
        assert "token is not known" in str(caught.value) or "doctor" in str(caught.value)
    assert threading.active_count() == before


lives = plays(Visitor.welcome, Visitor.live)


def test_an_interrupt_while_the_thread_starts_leaves_a_session_that_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    may_run, ended = threading.Event(), threading.Event()

    class Late(Session):
        """Its thread begins when the interrupt was dealt with."""

        def _run(self) -> None:
            assert may_run.wait(60)
            super()._run()
            ended.set()

    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        if thread.name == "gpushare-session":
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with ScriptedNode(lives) as node:
        session = Late(os.fspath(node.socket), lambda: None, 20.0)
        with pytest.raises(KeyboardInterrupt):
            session.open()
        may_run.set()
        assert session.call(Method.STATUS) == {"state": "held"}
        session.close()
        assert ended.wait(60)
    assert session.link is Link.CLOSED
    assert not caplog.records, "no traceback for the person"


def test_a_node_manager_that_is_being_restarted_is_waited_for(recorder: Recorder) -> None:
    with ScriptedNode(lives) as node:
        node.stop()
        starter = threading.Timer(0.3, node.restart, [lives])
        starter.start()
        session = Session(os.fspath(node.socket), lambda: None, 20.0)
        session.open(patience=20.0)
        starter.join()
        assert session.link is Link.UP
        session.close()


def test_a_slow_one_that_is_there_is_heard_out(recorder: Recorder) -> None:
    """Though nobody would wait for one that is not."""

    # Longer than is waited for one that is not there.
    slow = plays(lambda _visitor: time.sleep(0.3), lives)
    with ScriptedNode(slow) as node, opened(node, recorder) as session:
        assert session.link is Link.UP


def test_a_full_backlog_is_no_hang(tmp_path: Any) -> None:
    path = os.fspath(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as listener, contextlib.ExitStack() as stack:
        listener.bind(path)
        listener.listen(0)
        for _ in range(8):
            visitor = stack.enter_context(socket.socket(socket.AF_UNIX))
            visitor.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                visitor.connect(path)
        begun = time.monotonic()
        with pytest.raises(NodeUnavailable):
            Session(path, lambda: None, BOUND).open(patience=BOUND)
        assert time.monotonic() - begun < BOUND + SLACK


asked = plays(Visitor.welcome, expects(Method.REQUEST))
BAD_REQUESTS: dict[str, Script] = {
    "hangs": plays(Visitor.welcome, Visitor.hang),
    "closes": asked,
    "closes in mid-line": plays(asked, says(b'{"jsonrpc": "2.0", "id"')),
    "nonsense": plays(asked, says(b"I am a teapot\n")),
    "a grant without a lease": plays(
        Visitor.welcome,
        lambda visitor: visitor.answer(visitor.expect(Method.REQUEST), {"state": "held"}),
    ),
}


@pytest.mark.parametrize("kind", BAD_REQUESTS)
def test_asking_is_bounded(kind: str, recorder: Recorder) -> None:
    with (
        ScriptedNode(BAD_REQUESTS[kind]) as node,
        opened(node, recorder, BOUND, outage=BOUND) as session,
    ):
        begun = time.monotonic()
        with pytest.raises(NodeUnavailable):
            ask(session, recorder)
        assert time.monotonic() - begun < BOUND + SLACK


def test_a_call_is_bounded(recorder: Recorder) -> None:
    with ScriptedNode(BAD_REQUESTS["hangs"]) as node, opened(node, recorder, BOUND) as line:
        begun = time.monotonic()
        with pytest.raises(NodeUnavailable) as caught:
            line.call(Method.STATUS)
        assert time.monotonic() - begun < BOUND + SLACK
        assert caught.value.reason is Reason.TIMED_OUT


# -- hello and the first call together ------------------------------------------------------


def both(visitor: Visitor) -> tuple[Call, Call]:
    """Hello and the request behind it, neither of them answered."""
    hello, request = visitor.read(), visitor.read()
    assert (hello.method, request.method) == (Method.HELLO, Method.REQUEST)
    return hello, request


def grants_at_once(visitor: Visitor) -> None:
    hello, request = both(visitor)
    visitor.welcome(hello=hello)
    visitor.grant(request)
    visitor.live()


def test_the_first_request_goes_with_hello_in_one_round_trip(recorder: Recorder) -> None:
    with ScriptedNode(grants_at_once) as node, opened(node, recorder, opens=False) as session:
        assert ask(session, recorder)["lease"] == LEASE
        assert node.wait_for(Method.HEARTBEAT)
        assert len(node.calls(Method.REQUEST)) == node.connections == 1


def test_a_request_that_nobody_waits_for_any_more_is_taken_back(recorder: Recorder) -> None:
    """The node manager reads it when it is well again; it must not keep a GPU for nobody."""
    with ScriptedNode(Visitor.hang) as node, opened(node, recorder, BOUND, opens=False) as session:
        with pytest.raises(NodeUnavailable):
            ask(session, recorder)
        (call,) = node.wait_for(Method.RELEASE)
        assert call.params.request_id == "r1"


# -- asking and waiting ------------------------------------------------------------------


queued = plays(Visitor.welcome, lambda visitor: visitor.queue(visitor.expect(Method.REQUEST)))
queues_for_ever = plays(queued, Visitor.live)
holds = plays(
    Visitor.welcome, lambda visitor: visitor.grant(visitor.expect(Method.REQUEST)), Visitor.live
)


def test_the_queue_may_take_longer_than_any_answer(recorder: Recorder) -> None:
    enough = threading.Event()

    def script(visitor: Visitor) -> None:
        visitor.welcome()
        call = visitor.expect(Method.REQUEST)
        visitor.queue(call)
        while not enough.is_set():
            visitor.answer(visitor.read(), {"state": "queued"})
        visitor.grant(call)
        visitor.live()

    begun, answer_timeout = time.monotonic(), 2.0

    def let_pass() -> None:
        if time.monotonic() - begun > 1.5 * answer_timeout:
            enough.set()

    recorder.on_waiting = let_pass
    with ScriptedNode(script) as node, opened(node, recorder, answer_timeout) as session:
        assert ask(session, recorder)["lease"] == LEASE
        assert recorder.queued[0]["position"] == 2
        beats = node.calls(Method.HEARTBEAT)
        assert beats, "a waiting task gives signs of life"
        assert {beat.params.lease for beat in beats} == {LEASE}


def test_wait_timeout_leaves_the_queue(recorder: Recorder) -> None:
    with ScriptedNode(queues_for_ever) as node, opened(node, recorder) as session:
        began = time.monotonic()
        with pytest.raises(NodeUnavailable, match="wait_timeout") as caught:
            ask(session, recorder, wait_timeout=0.2)
        assert time.monotonic() - began >= 0.2
        assert caught.value.reason is Reason.TIMED_OUT
        assert node.wait_for(Method.RELEASE)[0].params.request_id == "r1"


@pytest.mark.parametrize("then", [Visitor.live, Visitor.hang])
def test_an_interrupt_while_waiting_leaves_the_queue_at_once(
    recorder: Recorder, then: Script
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    recorder.on_waiting = interrupt
    with ScriptedNode(plays(queued, then)) as node, opened(node, recorder, 2 * SLACK) as session:
        begun = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            ask(session, recorder)
        assert time.monotonic() - begun < SLACK, "also where nobody answers"
        assert node.wait_for(Method.RELEASE)[0].params.request_id == "r1"
        if then is Visitor.hang:
            return
        seen = len(node.calls(Method.HEARTBEAT))
        session.call(Method.STATUS)
        session.call(Method.STATUS)
        assert len(node.calls(Method.HEARTBEAT)) <= seen + 1, "no signs of life for what we left"


@pytest.mark.parametrize("opens", [True, False], ids=["then", "with-hello"])
def test_asking_again_after_a_restart_is_the_same_request(recorder: Recorder, opens: bool) -> None:
    """Crash after the commit, before the reply: the retry must not get a second lease."""
    scripts = (asked, holds) if opens else (both, grants_at_once)
    with ScriptedNode(*scripts) as node, opened(node, recorder, opens=opens) as session:
        assert ask(session, recorder)["lease"] == LEASE
        assert [call.params.request_id for call in node.calls(Method.REQUEST)] == ["r1", "r1"]


def test_the_place_in_the_queue_survives_a_hang(recorder: Recorder) -> None:
    """No answer to signs of life: the connection is given up, the place is not."""
    falls_silent = plays(queued, Visitor.hang)
    with ScriptedNode(falls_silent, holds) as node, opened(node, recorder, BOUND) as session:
        assert ask(session, recorder)["gpus"] == [GPU]
        assert node.connections == 2


def test_a_node_manager_gone_for_good_ends_the_wait(recorder: Recorder) -> None:
    with ScriptedNode(queues_for_ever) as node, opened(node, recorder, outage=0.3) as session:
        stopped: list[bool] = []

        def stop() -> None:
            if not stopped:
                stopped.append(True)
                node.stop()

        recorder.on_waiting = stop
        with pytest.raises(NodeUnavailable, match=r"away for 0\.3 s \(outage_timeout\)"):
            ask(session, recorder)


def test_revoked_while_waiting(recorder: Recorder) -> None:
    def script(visitor: Visitor) -> None:
        visitor.welcome()
        call = visitor.expect(Method.REQUEST)
        visitor.queue(call)
        visitor.refuse(call, Reason.UNKNOWN_LEASE, "The kernel was shut down.")
        visitor.live()

    with (
        ScriptedNode(script) as node,
        opened(node, recorder) as session,
        pytest.raises(LeaseLost, match="shut down"),
    ):
        ask(session, recorder)


# -- holding -----------------------------------------------------------------------------


def test_attaches_again_after_a_restart(recorder: Recorder) -> None:
    def knows_it(visitor: Visitor) -> None:
        visitor.welcome()
        call = visitor.expect(Method.ATTACH)
        assert (call.params.lease, call.params.secret) == (LEASE, SECRET)
        visitor.grant(call)
        visitor.live()

    with ScriptedNode(holds) as node, opened(node, recorder) as session:
        ask(session, recorder)
        node.restart(knows_it)
        node.wait_for(Method.ATTACH)
        count = len(node.calls(Method.HEARTBEAT))
        node.wait_for(Method.HEARTBEAT, count + 2)
        assert recorder.lost == []


def test_hears_that_the_lease_is_gone_after_a_restart(recorder: Recorder) -> None:
    forgot = plays(
        Visitor.welcome,
        lambda it: it.refuse(it.expect(Method.ATTACH), Reason.UNKNOWN_LEASE, "No such lease."),
        Visitor.live,
    )
    with ScriptedNode(holds) as node, opened(node, recorder) as session:
        ask(session, recorder)
        node.restart(forgot)
        until(lambda: recorder.lost, "the loss of the lease")
        assert recorder.lost == [(LEASE, "No such lease.")]


def test_only_changes_of_activity_are_told(recorder: Recorder) -> None:
    with ScriptedNode(holds) as node, opened(node, recorder) as session:
        ask(session, recorder)
        for _ in range(50):  # "Run all": cell after cell
            session.set_activity(LEASE, True)
            session.set_activity(LEASE, False)
        node.wait_for(Method.ACTIVITY)
        session.set_activity(LEASE, True)
        node.wait_for(Method.ACTIVITY, 2)
        assert [call.params.state for call in node.calls(Method.ACTIVITY)] == ["idle", "busy"]


def test_a_node_manager_that_breaks_after_each_hello_is_not_rushed(recorder: Recorder) -> None:
    breaks = plays(Visitor.welcome, expects(Method.ATTACH))
    with ScriptedNode(holds, breaks) as node, opened(node, recorder) as session:
        ask(session, recorder)
        node.restart(breaks)
        begun = time.monotonic()
        until(lambda: node.connections >= 4, "a few more attempts")
        assert time.monotonic() - begun > 0.2


def test_close_ends_the_thread_and_the_descriptors(recorder: Recorder) -> None:
    with ScriptedNode(holds) as node:
        before = set(os.listdir("/proc/self/fd"))
        threads = threading.active_count()
        with opened(node, recorder) as session:
            ask(session, recorder)

        def ours() -> set[str]:
            return set(os.listdir("/proc/self/fd")) - before

        # The scripted node's own end, and the listing itself.
        until(lambda: len(ours()) <= 2, "the descriptors closed")
        until(lambda: threading.active_count() <= threads, "the end of the threads")
        with pytest.raises(NodeUnavailable, match="hung up"):
            session.call(Method.STATUS)


def test_what_is_given_back_at_the_end_is_answered_first(recorder: Recorder) -> None:
    """Else a busy node manager sees the process end first, and its lease ends as lost."""
    answered = threading.Event()

    def script(visitor: Visitor) -> None:
        visitor.welcome(heartbeat_interval=30.0)
        release = visitor.read()
        time.sleep(0.2)
        answered.set()
        visitor.answer(release, {})
        visitor.hang()

    with ScriptedNode(script) as node, opened(node, recorder) as session:
        session.give_back(LEASE, ends=True)
        assert answered.is_set()
        session._timeout = BOUND
        session.give_back(LEASE, ends=True)  # nobody answers


def test_hanging_up_just_when_the_wire_breaks_is_no_error(recorder, caplog):
    """Found by the storm of faults: the thread went on with the wire that was closed already."""
    script = plays(lambda visitor: visitor.welcome(heartbeat_interval=30.0), Visitor.hang)
    with ScriptedNode(script) as node, opened(node, recorder, timeout=5.0) as session:
        # As close() does, but the thread has not looked yet when the wire breaks.
        session.link = Link.CLOSED
        node.stop()
        assert session._thread is not None
        session._thread.join(SLACK)
        assert not session._thread.is_alive()
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
