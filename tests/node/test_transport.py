"""No client that is slow, rude or dead delays another one at the node manager's socket."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import stat
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.loop import soon
from support.node import open_directory
from support.wire import CLIENT, WITHIN, ByToken, Wire, make, open_house

from jupyter_gpushare.link.dial import open_streams
from jupyter_gpushare.node.people.identity import IdentityRefused, Peer, Principal
from jupyter_gpushare.node.wire import transport
from jupyter_gpushare.node.wire.transport import Connection, SocketInUse
from jupyter_gpushare.protocol import sockets
from jupyter_gpushare.protocol.calls import Call
from jupyter_gpushare.protocol.errors import DOMAIN_ERROR, INTERNAL_ERROR, PARSE_ERROR, Reason
from jupyter_gpushare.protocol.framing import MAX_LINE, MAX_LINE_FROM_NODE
from jupyter_gpushare.protocol.messages import Answer, Method, Notification


@pytest.fixture
def place() -> Iterator[Path]:
    with open_directory() as path:
        yield path


@dataclass
class Slow:
    """An identity that thinks until it is told to go on."""

    go: asyncio.Event = field(default_factory=asyncio.Event)
    outcome: Principal | Exception = field(default_factory=lambda: Principal("slow"))
    recheck: float | None = None
    asked: int = 0

    async def identify(self, peer: Peer, token: str | None) -> Principal:
        self.asked += 1
        await self.go.wait()
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    def close(self) -> None:
        pass


TASK = {"name": "n", "kind": "process"}


async def test_an_answer_that_is_no_json_is_our_bug_and_said_so(place: Path) -> None:
    async with open_house(place / "s") as house:
        wire = await house.guest()
        house.host.answer = {"usage": float("nan")}
        await wire.send(Method.STATUS)
        assert (await wire.error()).error.code == INTERNAL_ERROR
        house.host.answer = {}
        assert await wire.call(Method.STATUS) == {}


# -- hello ----------------------------------------------------------------------------


@pytest.mark.parametrize("method", [Method.STATUS, Method.QUOTA_LIST, Method.WATCH])
async def test_before_hello_nothing_is_answered(place: Path, method: Method) -> None:
    async with open_house(place / "s") as house:
        wire = await house.connect()
        call_id = await wire.send(method)
        error = await wire.error()
        assert (error.id, error.error.reason) == (call_id, Reason.NOT_ALLOWED)
        assert "hello" in error.error.message
        assert house.host.calls == 0
        await wire.send(Method.HELLO, protocol="1", client=CLIENT)
        assert (await wire.error()).error.reason is Reason.BAD_REQUEST
        await wire.hello()  # it may be said again
        await wire.call(method)


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("known", [True, False])
async def test_what_comes_behind_hello_waits_until_it_is_known_who_says_it(
    place: Path, together: bool, known: bool
) -> None:
    identity = Slow() if known else Slow(outcome=IdentityRefused("You are nobody."))
    async with open_house(place / "s", identity) as house:
        wire = await house.connect()
        hello, line = wire.protocol.call(Method.HELLO, protocol=1, client=CLIENT)
        look, more = wire.protocol.call(Method.STATUS)
        nonsense = b"x" * 2**20  # more than is read at once: it is left in the socket
        for part in [line + more + nonsense] if together else [line, more, nonsense]:
            wire.writer.write(part)
            await asyncio.sleep(0.01)
        await soon(lambda: identity.asked)
        (conn,) = house.host.opened
        await house.host.until(lambda: conn._protocol.framer.holds)
        assert house.host.calls == 0
        assert len(conn._protocol.framer._rest) < 2**16
        identity.go.set()
        if known:
            assert await wire.next() == Answer(hello, {"environment": "slow"})
            answered = await wire.next()
            assert isinstance(answered, Answer)
            assert answered.id == look
        else:
            error = await wire.error()
            assert (error.id, error.error.reason) == (hello, Reason.NOT_ALLOWED)
            assert await wire.ended()
        assert house.host.calls == known


async def test_silence_instead_of_hello_is_ended_and_who_said_it_is_left_alone(place: Path) -> None:
    async with open_house(place / "s", hello_timeout=3.0) as house:
        wire, silent = await house.guest(), []
        for speaks in (b"", b'{"jsonrpc": "2.0", "id": 1,', b"\n\n\n"):
            silent.append(await house.connect())
            await silent[-1].say(speaks)
        # Their end shows that the deadline of all has passed.
        for other in silent:
            error = await other.error()
            assert (error.id, error.error.reason) == (None, Reason.TIMED_OUT)
            assert await other.ended()
        await wire.call(Method.STATUS)


@pytest.mark.parametrize(
    ("outcome", "code", "reason"),
    [
        (IdentityRefused("You are nobody."), DOMAIN_ERROR, Reason.NOT_ALLOWED),
        (RuntimeError("a bug"), INTERNAL_ERROR, Reason.UNAVAILABLE),
    ],
)
async def test_who_cannot_be_identified_is_told_and_sent_away(
    place: Path, outcome: Exception, code: int, reason: Reason
) -> None:
    identity = Slow(outcome=outcome)
    identity.go.set()
    async with open_house(place / "s", identity) as house:
        wire = await house.connect()
        hello = await wire.greet()
        error = await wire.error()
        assert (error.id, error.error.code, error.error.reason) == (hello, code, reason)
        assert "a bug" not in error.error.message
        assert await wire.ended()


async def test_a_client_that_leaves_while_it_is_identified(place: Path) -> None:
    identity = Slow()
    async with open_house(place / "s", identity) as house:
        wire = await house.connect()
        await wire.greet()
        wire.writer.close()
        await house.host.until(lambda: len(house.host.closed) == 1)
        identity.go.set()
        # Another one, who asks later and is answered, shows that the first was answered too.
        other = await house.connect()
        await other.hello()
        assert house.host.opened[0].principal is None


@pytest.mark.parametrize(
    "outcome", [IdentityRefused("Revoked."), RuntimeError("a bug"), Principal("slow", admin=True)]
)
async def test_a_live_connection_is_looked_at_again_and_closed_when_it_is_another(
    place: Path, outcome: Principal | Exception
) -> None:
    identity = Slow(recheck=0.02)
    identity.go.set()
    async with open_house(place / "s", identity) as house:
        wire = await house.connect()
        await wire.hello("t")
        await soon(lambda: identity.asked >= 4)
        assert not house.host.closed  # as long as it is who it was
        identity.outcome = outcome
        if isinstance(outcome, IdentityRefused):
            error = (await wire.error()).error
            assert (error.reason, error.message) == (Reason.NOT_ALLOWED, "Revoked.")
        assert await wire.ended()


async def test_a_client_that_leaves_while_it_is_looked_at_again_is_forgotten(place: Path) -> None:
    identity = Slow(recheck=0.02)
    identity.go.set()
    async with open_house(place / "s", identity) as house:
        wire = await house.connect()
        await wire.hello("t")
        identity.go.clear()
        asked = identity.asked
        await soon(lambda: identity.asked != asked)
        wire.writer.close()
        await house.host.until(lambda: len(house.host.closed) == 1)
        asked = identity.asked
        identity.go.set()
        # Another connection's looks show that time has passed.
        other = await house.connect()
        await other.hello("t")
        await soon(lambda: identity.asked >= asked + 1 + 4)
        assert house.host.opened[0]._deadline.cancelled()


# -- the rude -------------------------------------------------------------------------


@pytest.mark.parametrize("end", [b"", b"\n"])
async def test_an_over_long_line_ends_its_connection_only(place: Path, end: bytes) -> None:
    async with open_house(place / "s") as house:
        other, wire = await house.guest(), await house.guest()
        await wire.say(b"x" * MAX_LINE + end)
        error = await wire.error()
        assert (error.id, error.error.code) == (None, PARSE_ERROR)
        assert error.error.reason is Reason.BAD_REQUEST
        assert await wire.ended()
        await other.call(Method.STATUS)


@pytest.mark.parametrize("half", [b"{", b'{"jsonrpc":"2.0","id":1,"method":"status"}', b"\xff"])
async def test_half_a_line_and_then_the_end_is_no_call(place: Path, half: bytes) -> None:
    async with open_house(place / "s") as house:
        wire = await house.guest()
        await wire.say(half)
        wire.writer.write_eof()
        assert await wire.ended()
        await house.host.until(lambda: len(house.host.closed) == 1)
        assert house.host.calls == 0


async def test_a_flood_is_read_as_fast_as_its_owner_may_call_and_delays_nobody(place: Path) -> None:
    async with open_house(place / "s", ByToken(), burst=10, calls_per_second=30.0) as house:
        flooders = [await house.guest("mallory") for _ in range(4)]
        other = await house.guest("alice")
        before = house.host.calls
        for wire in flooders:
            for _ in range(10):
                await wire.send(Method.STATUS)
        # What mallory may call at once is answered, and so is each call of the others.
        for number in range(3):
            await other.call(Method.STATUS)
            assert house.host.calls - before - number - 1 < 40
        for wire in flooders:
            for _ in range(10):
                assert isinstance(await wire.next(), Answer), "nobody is refused for being fast"
        assert house.host.calls - before == 43


async def test_a_flood_of_nonsense_is_slowed_down_too_and_left_in_the_socket(place: Path) -> None:
    async with open_house(place / "s", ByToken(), burst=5, calls_per_second=1.0) as house:
        wire, other = await house.guest("mallory"), await house.guest("alice")
        line = b'{"jsonrpc":"2.0","id":1,"method":"nope","params":"' + b"x" * 10_000 + b'"}\n'
        wire.writer.write(line * 500)
        refused = house.transport.refusals[Reason.BAD_REQUEST]
        await other.call(Method.STATUS)
        assert house.transport.refusals[Reason.BAD_REQUEST] - refused <= 10
        for _ in range(5):
            assert (await wire.error()).error.reason is Reason.BAD_REQUEST
        held = house.host.opened[0]._protocol.framer._rest
        assert len(held) <= MAX_LINE + 16 * 1024


@pytest.mark.parametrize("said", [b" ", b"\n"])
@pytest.mark.parametrize("is_guest", [True, False])
async def test_who_sends_no_whole_line_is_read_no_more_than_the_allowance(
    place: Path, said: bytes, is_guest: bool
) -> None:
    async with open_house(place / "s", ByToken(), burst=5, calls_per_second=30.0) as house:
        wire = await (house.guest("mallory") if is_guest else house.connect())
        await house.guest("alice")
        conn = house.host.opened[0]
        wire.writer.write(said * 2**23)
        await soon(lambda: conn._wire is None or not conn._wire.is_reading())
        left = wire.writer.transport.get_write_buffer_size()
        assert left > 2**21
        # It goes on when there is some allowance again.
        await soon(lambda: wire.writer.transport.get_write_buffer_size() != left)


async def test_many_hellos_at_once_do_not_hold_the_loop(place: Path) -> None:
    async with open_house(place / "s") as house:
        turn, in_turn = 0, Counter[int]()
        loop, greets = asyncio.get_running_loop(), house.host.on_hello

        def tick() -> None:
            nonlocal turn
            turn += 1
            if len(house.host.closed) < 150:
                loop.call_soon(tick)

        def on_hello(conn: Connection, principal: Principal, call: Call) -> None:
            time.sleep(0.001)  # a real hello keeps the loop this long
            in_turn[turn] += 1
            greets(conn, principal, call)

        house.host.on_hello = on_hello  # type: ignore[method-assign]
        wires = [await house.connect() for _ in range(150)]
        await house.host.until(lambda: len(house.host.opened) == 150)
        tick()
        for wire in wires:
            await wire.greet()
        for wire in wires:
            assert isinstance(await wire.next(), Answer)
            wire.writer.close()
        await house.host.until(lambda: len(house.host.closed) == 150)
        assert in_turn.total() == 150
        assert max(in_turn.values()) < 20


async def test_hellos_are_spent_of_the_allowance_and_delay_nobody_else(place: Path) -> None:
    async with open_house(place / "s", ByToken(), burst=10, calls_per_second=30.0) as house:
        floods = [await house.connect() for _ in range(40)]
        for wire in floods:
            await wire.greet(token="mallory")
        other = await house.guest("alice")
        await other.call(Method.STATUS)
        assert sum(conn.principal is not None for conn in house.host.opened) <= 14
        for wire in floods:
            assert isinstance(await wire.next(), Answer), "nobody is refused for being fast"


async def test_the_kernel_keeps_little_of_what_is_not_read(place: Path) -> None:
    """What it keeps nobody counts: with its usual buffers it were 200 KiB a connection."""

    async with open_house(place / "s") as house:
        wire = await house.guest()
        wire.pause()
        (conn,) = house.host.opened
        conn.notify("queued", {"message": "x" * 400_000})
        assert conn.buffered > 300_000
        wire.read_on()
        assert isinstance(await wire.next(), Notification)


async def test_all_that_one_does_not_read_is_bounded_together(place: Path) -> None:
    limits = {"soft_buffer": 1_000_000, "hard_buffer": 2_000_000}
    async with open_house(place / "s", ByToken(), **limits) as house:
        for _ in range(10):
            (await house.guest("mallory")).pause()
        theirs = tuple(house.host.opened)
        other = await house.guest("alice")
        for method, count, most in (("changed", 50, 1_300_000), ("queued", 100, 2_300_000)):
            for _ in range(count):
                for conn in theirs:
                    conn.notify(method, {"status": "x" * 100_000})
            assert sum(conn.buffered for conn in theirs) < most
        await other.call(Method.STATUS)
        await house.host.until(lambda: len(house.host.closed) > 0)
        assert all(conn.owner == "mallory" for conn in house.host.closed)


async def test_all_that_do_not_read_are_bounded_together(place: Path) -> None:
    limits = {"soft_buffer": 1_000_000, "hard_buffer": 2_000_000, "total_buffer": 4_000_000}
    async with open_house(place / "s", ByToken(), **limits) as house:
        for number in range(60):
            (await house.guest(f"mallory-{number // 3}")).pause()
        theirs = tuple(house.host.opened)
        for size in (400_000, *[10_000] * 30):
            for conn in theirs:
                conn.notify("queued", {"message": "x" * size})
        assert sum(conn.buffered for conn in theirs) < 4_000_000 + 20 * 10_000
        await (await house.guest("alice")).call(Method.STATUS)


async def test_the_same_id_twice_in_flight_is_refused_and_the_first_stays(place: Path) -> None:
    async with open_house(place / "s") as house:
        wire = await house.guest()
        line = b'{"jsonrpc":"2.0","id":"x","method":"request","params":{"task":'
        line += b'{"name":"n","kind":"process"}}}\n'
        await wire.say(line)
        await wire.say(line)
        error = await wire.error()
        assert (error.id, error.error.reason) == ("x", Reason.BAD_REQUEST)
        assert "still open" in error.error.message
        # Nonsense under the same id does not close the open call either.
        await wire.say(b'{"jsonrpc":"2.0","id":"x","method":"nope"}\n')
        await wire.error()
        await wire.say(line)
        assert "still open" in (await wire.error()).error.message
        ((conn, call),) = house.host.waiting
        conn.reply(call.id, {"lease": "l"})
        assert await wire.next() == Answer("x", {"lease": "l"})
        # Answered: now the id is free again.
        await wire.say(line)
        await house.host.until(lambda: len(house.host.waiting) == 2)


async def test_open_calls_are_bounded(place: Path) -> None:
    async with open_house(place / "s", calls_in_flight=3) as house:
        wire = await house.guest()
        for _ in range(3):
            await wire.send(Method.REQUEST, task=TASK)
        over = await wire.send(Method.REQUEST, task=TASK)
        error = await wire.error()
        assert (error.id, error.error.reason) == (over, Reason.RATE_LIMITED)
        conn, call = house.host.waiting.pop()
        conn.reply(call.id, {})
        assert isinstance(await wire.next(), Answer)
        await wire.call(Method.STATUS)
        # A call that ended with an error is not open any more either.
        await wire.send(Method.REQUEST, task=TASK)
        await house.host.until(lambda: len(house.host.waiting) == 3)
        conn, call = house.host.waiting.pop()
        conn.error(call.id, Reason.OVER_QUOTA, "No.")
        assert (await wire.error()).error.reason is Reason.OVER_QUOTA
        await wire.call(Method.STATUS)


# -- how many -------------------------------------------------------------------------


async def test_connections_are_bounded(place: Path) -> None:
    async with open_house(place / "s", connections_per_user=2) as house:
        first, _second = await house.guest(), await house.guest()
        third = await house.connect()
        await third.greet()
        error = await third.error()
        assert error.error.reason is Reason.RATE_LIMITED
        assert "You have too many" in error.error.message
        assert await third.ended()
        await first.call(Method.STATUS)
        first.writer.close()
        await house.host.until(lambda: len(house.host.closed) == 2)
        await house.guest()


async def test_those_who_say_nothing_go_first(place: Path) -> None:
    async with open_house(place / "s", strangers=2) as house:
        silent = [await house.connect() for _ in range(4)]
        await house.host.until(lambda: len(house.host.opened) == 4)
        for wire in silent[:2]:
            assert "say nothing" in (await wire.error()).error.message
            assert await wire.ended()
        # Who speaks is none of them: a flood of silent ones pushes nobody else out.
        await silent[2].hello()
        flood = [await house.connect() for _ in range(20)]
        await house.host.until(lambda: len(house.host.opened) == 24)
        await silent[2].call(Method.STATUS)
        await (await house.guest()).call(Method.STATUS)
        assert "say nothing" in (await flood[0].error()).error.message


async def test_one_who_takes_all_places_gives_them_up_for_others(place: Path) -> None:
    async with open_house(place / "s", ByToken(), connections=4) as house:
        bobs = [await house.guest("bob") for _ in range(4)]
        # All run as one OS user, as in containers: what counts is whose the token is.
        alice = await house.guest("alice")
        assert "you have most" in (await bobs[3].error()).error.message
        assert await bobs[3].ended()
        await bobs[0].call(Method.STATUS)
        again = await house.connect()
        await again.greet(token="bob")
        assert "too many connections; try again" in (await again.error()).error.message
        await alice.call(Method.STATUS)


async def test_nothing_is_left_of_those_who_went(place: Path) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    async with open_house(place / "s", connections=3, connections_per_user=3) as house:

        async def come_and_go(count: int) -> None:
            gone = len(house.host.closed)
            for number in range(count):
                wire = await house.guest()
                if number % 2:
                    await wire.send(Method.REQUEST, task=TASK)
                wire.writer.close()
                await wire.writer.wait_closed()
            await house.host.until(lambda: len(house.host.closed) == gone + count)

        await come_and_go(1)
        before = descriptors()
        await come_and_go(60)
        assert descriptors() <= before


# -- the slow -------------------------------------------------------------------------


async def test_a_client_that_does_not_read_delays_nobody(place: Path) -> None:
    async with open_house(place / "s", soft_buffer=100_000, hard_buffer=1_000_000) as house:
        slow, quick = await house.guest(), await house.guest()
        slow.pause()
        conn = house.host.opened[0]
        news = {"status": "x" * 10_000}
        sent = 0
        while conn.notify("changed", news):
            sent += 1
            assert sent < 1000, "status changes pile up without a bound"
        # It is not closed for that: what it did not take is dropped, and others are served.
        for _ in range(50):
            assert not conn.notify("changed", news)
            await quick.call(Method.STATUS)
        assert not house.host.closed
        slow.read_on()
        for _ in range(sent):
            assert isinstance(await slow.next(), Notification)
        assert conn.notify("changed", {"status": "the newest"})
        last = await slow.next()
        assert isinstance(last, Notification)
        assert last.params == {"status": "the newest"}
        await slow.call(Method.STATUS)


async def test_one_long_message_cuts_nobody_off(place: Path) -> None:
    """Longer than the hard bound: it was not the client who let it pile up."""

    async with open_house(place / "s", soft_buffer=100_000, hard_buffer=500_000) as house:
        house.host.answer = {"text": "x" * 2_000_000}
        guest = await house.guest()
        for _ in range(3):
            assert await guest.call(Method.STATUS) is not None
        assert house.host.closed == []


async def test_what_no_client_could_read_is_not_sent(place: Path) -> None:
    async with open_house(place / "s") as house:
        guest = await house.guest()
        conn = house.host.opened[0]
        conn.notify("changed", {"status": "x" * MAX_LINE_FROM_NODE})
        house.host.answer = {"text": "x" * MAX_LINE_FROM_NODE}
        call_id = await guest.send(Method.STATUS)
        refused = await guest.error()
        assert (refused.id, refused.error.reason) == (call_id, Reason.UNAVAILABLE)
        assert "cannot send" in refused.error.message
        house.host.answer = {}
        await guest.call(Method.STATUS)  # it is connected still


async def test_ending_does_not_wait_for_a_client_that_never_reads(place: Path) -> None:
    house = make(place / "s", hello_timeout=1.0, soft_buffer=10_000_000)
    await house.transport.start()
    rude = await house.guest()
    rude.pause()
    conn = house.host.opened[0]
    conn.notify("queued", {"message": "x" * 5_000_000})
    async with asyncio.timeout(WITHIN):
        await house.transport.close()
    await house.host.until(lambda: conn in house.host.closed)
    rude.writer.close()


# -- the place ------------------------------------------------------------------------


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def test_a_shared_socket_is_everybodys_whatever_the_umask(place: Path) -> None:
    mask = os.umask(0o077)
    try:
        async with open_house(place / "new" / "s", shared=True):
            assert mode(place / "new" / "s") == 0o666
            assert mode(place / "new") == 0o755
        assert os.umask(0o077) == 0o077, "the umask was not put back"
    finally:
        os.umask(mask)


async def test_a_shared_socket_that_nobody_can_reach_is_told_of(
    place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_house(place / "s", shared=True):
        assert not caplog.messages
    place.chmod(0o700)
    async with open_house(place / "s", shared=True):
        pass
    assert f"Nobody but its owner may enter {place}, " in caplog.text


async def test_a_home_may_have_a_longer_name_than_a_socket(place: Path) -> None:
    """Linux takes 107 bytes for a socket's path."""
    folder = place / ("long-" * 30) / "runtime"
    async with open_house(folder / "s") as house:
        wire = house.takes(Wire(*await open_streams(str(folder / "s"))))
        await (await wire.hello()).call(Method.STATUS)
        assert mode(folder / "s") == 0o600
    assert list(folder.iterdir()) == [], "the socket is removed at the end"


async def test_a_node_manager_whose_folder_was_emptied_is_found_again(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "NAME_LOOK", 0.01)

    async with open_house(place / "run" / "s") as house:
        guest = await house.guest()
        assert (mode(place / "run"), mode(place / "run" / "s")) == (0o700, 0o600), "its owner's"
        for _ in range(2):
            shutil.rmtree(place / "run")
            await soon(lambda: sockets.answers(place / "run" / "s"))
            await (await house.guest()).call(Method.STATUS)
        await guest.call(Method.STATUS)  # it is connected still


async def test_a_socket_for_everybody_says_when_it_was_listened_at_last(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "NAME_LOOK", 0.01)

    async with open_house(place / "s", shared=True) as _house:
        os.utime(place / "s", (1.0, 1.0))
        await soon(lambda: (place / "s").stat().st_mtime != 1.0)


async def test_a_live_node_managers_socket_is_left_alone(place: Path) -> None:
    async with open_house(place / "s") as house:
        second = make(place / "s")
        with pytest.raises(SocketInUse, match="Another node manager"):
            await second.transport.start()
        await second.transport.close()
        await house.guest()


async def test_a_busy_node_managers_socket_is_left_alone(place: Path) -> None:
    """Its backlog is full, so that nobody answers: still no reason to take its place."""
    with socket.socket(socket.AF_UNIX) as busy, contextlib.ExitStack() as stack:
        busy.bind(str(place / "s"))
        busy.listen(0)
        for _ in range(2):
            waiting = stack.enter_context(socket.socket(socket.AF_UNIX))
            waiting.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                waiting.connect(str(place / "s"))
        with pytest.raises(SocketInUse):
            await make(place / "s").transport.start()
        assert (place / "s").is_socket()


@pytest.mark.parametrize("kind", ["file", "directory", "link"])
async def test_what_is_no_socket_is_never_removed(place: Path, kind: str) -> None:
    (place / "file").write_text("my thesis")
    (place / "directory").mkdir()
    (place / "link").symlink_to(place / "file")
    with pytest.raises(SocketInUse, match="no socket; move it away"):
        await make(place / kind).transport.start()
    assert (place / "directory").is_dir()
    assert (place / "link").read_text() == "my thesis"
