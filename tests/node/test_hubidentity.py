"""A JupyterHub token is its owner for a bounded time, and a lie costs only who tells it."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import certipy
import pytest
from support.clock import FakeClock
from support.tinyhub import OWN, TinyHub

from jupyter_gpushare.daemon import hubapi
from jupyter_gpushare.daemon.hubapi import CertificatesUnreadable, HubApi, HubAway, hub_trust
from jupyter_gpushare.node.people import hubidentity
from jupyter_gpushare.node.people.hubidentity import HubIdentity, HubTrust
from jupyter_gpushare.node.people.identity import IdentityRefused, Peer, Principal

PEER = Peer(pid=1, uid=4711, gid=4711)
ALICE = Principal("alice", ("students",), False)


def a_hub() -> TinyHub:
    return TinyHub(
        tokens={"a": "alice", "c": "carol", "s": "service:gpushare"},
        users={"alice": ["students"], "carol": []},
        admins={"carol"},
    )


@asynccontextmanager
async def asked(
    trust: HubTrust | None = None,
) -> AsyncIterator[tuple[TinyHub, HubIdentity, FakeClock]]:
    """A Hub that is served, an identity that asks it, and its time."""
    time, trust = FakeClock(), trust or HubTrust()
    async with a_hub().served() as hub:
        identity = HubIdentity(HubApi(hub.url), OWN, trust, now=time.boot, owner_uid=9999)
        with closing(identity):
            async with asyncio.timeout(60):
                yield hub, identity, time


async def refused(identity: HubIdentity, token: str | None, peer: Peer = PEER) -> str:
    with pytest.raises(IdentityRefused) as why:
        await identity.identify(peer, token)
    return str(why.value)


async def with_many(hub: TinyHub, identity: HubIdentity, who: str, count: int) -> list[str]:
    """So many tokens of theirs, which the identity knows."""
    tokens = [f"{who}s-{number}" for number in range(count)]
    hub.tokens |= dict.fromkeys(tokens, who)
    for token in tokens:
        await identity.identify(PEER, token)
    return tokens


async def all_of(identity: HubIdentity, tokens: Iterable[str], peer: Peer = PEER) -> list[Any]:
    """What each gets that is shown at the same time: a principal, or why not."""
    asked = [identity.identify(peer, token) for token in tokens]
    return await asyncio.gather(*asked, return_exceptions=True)


async def test_a_token_is_its_owner_with_the_hubs_groups() -> None:
    async with asked() as (_hub, identity, _time):
        assert await identity.identify(PEER, "a") == ALICE
        assert await identity.identify(PEER, "c") == Principal("carol", (), True)
        assert await identity.identify(PEER, "s") == Principal("service:gpushare", (), False)


@pytest.mark.parametrize(
    ("trust", "token", "admin"),
    [
        (HubTrust(hub_admins=False), "c", False),
        (HubTrust(admin_groups=frozenset({"students"})), "a", True),
        (HubTrust(admin_services=frozenset({"gpushare"})), "s", True),
        # Such a service needs no permission for GPUs.
        (HubTrust(service="gpushare", admin_services=frozenset({"gpushare"})), "s", True),
    ],
)
async def test_who_administers_is_a_setting(trust: HubTrust, token: str, admin: bool) -> None:
    async with asked(trust) as (_hub, identity, _time):
        assert (await identity.identify(PEER, token)).admin is admin


async def test_whom_the_pool_names_has_what_their_token_gives() -> None:
    for trust in (
        HubTrust(),
        HubTrust(hub_admins=False),
        HubTrust(admin_groups=frozenset({"students"})),
        HubTrust(per_server=True),
    ):
        async with asked(trust) as (_hub, identity, _time):
            for token, admin in (("a", False), ("c", True)):
                person = await identity.identify(PEER, token)
                again = identity.vouched(person.environment, person.groups, admin)
                assert again == person
            assert not identity.vouched("alice/gpu", (), False).all_servers
            with pytest.raises(IdentityRefused, match="no person's"):
                identity.vouched("service:gpushare", (), True)


@pytest.mark.parametrize("host_admins", [False, True])
async def test_root_and_the_node_managers_user_need_no_token_where_that_is_said(
    host_admins: bool,
) -> None:
    async with asked(HubTrust(host_admins=host_admins)) as (_hub, identity, _time):
        for uid, admin in ((0, host_admins), (9999, host_admins), (4711, False)):
            peer = Peer(1, uid, uid)
            for nothing in (None, ""):
                if admin:
                    assert (await identity.identify(peer, nothing)).admin
                else:
                    assert "none was shown" in await refused(identity, nothing, peer)
            # Who shows a token is its owner, whoever that is on the host.
            assert await identity.identify(peer, "a") == ALICE


@pytest.mark.parametrize("token", ["unknown", "a\r\nX: y", "ä", "x" * 1025, "\0", " "])
async def test_what_is_no_token_is_refused_and_told_to_nobody(
    token: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with asked() as (_hub, identity, _time):
        why = await refused(identity, token)
        assert "does not know this token" in why
        if len(token) > 2:
            assert token not in why + caplog.text


async def test_what_the_hub_takes_away_works_as_long_as_is_said_and_no_longer() -> None:
    async with asked() as (hub, identity, time):
        await identity.identify(PEER, "a")
        hub.users["alice"] = ["staff", "students"]
        time.advance(44)
        assert await identity.identify(PEER, "a") == ALICE
        time.advance(1)
        assert (await identity.identify(PEER, "a")).groups == ("staff", "students")
        del hub.tokens["a"]
        time.advance(45)
        await refused(identity, "a")
        # A connection that was let in at the last instant is closed within 60 seconds.
        assert identity.recheck == 15.0


@pytest.mark.parametrize("broken", [500, 502, 503])
async def test_a_known_token_is_believed_while_the_hub_is_away_but_not_for_ever(
    broken: int,
) -> None:
    async with asked() as (hub, identity, time):
        await identity.identify(PEER, "a")
        hub.broken = broken
        assert "cannot be asked" in await refused(identity, "c")
        time.advance(599)
        assert await identity.identify(PEER, "a") == ALICE
        time.advance(1)
        assert "cannot be asked" in await refused(identity, "a")
        hub.broken = 0
        assert await identity.identify(PEER, "a") == ALICE


@pytest.mark.parametrize("broken", [401, 403, 404, 429, 302, 200])
async def test_a_hub_that_answers_is_not_away(broken: int) -> None:
    async with asked() as (hub, identity, time):
        await identity.identify(PEER, "a")
        hub.broken = broken
        time.advance(60)
        await refused(identity, "a")
        # Who was refused by the Hub is so while it is away, the others are known again.
        hub.broken = 503
        time.advance(60)
        if broken in (401, 403, 404):
            await refused(identity, "a")
        else:
            assert await identity.identify(PEER, "a") == ALICE


async def test_a_hub_that_does_not_let_us_read_a_user_says_no(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with asked() as (hub, identity, time):
        await identity.identify(PEER, "a")
        groups = hub.users.pop("alice")
        time.advance(60)
        assert "does not let the node manager read users" in await refused(identity, "a")
        assert "read:users:groups" in caplog.text
        hub.users["alice"], hub.broken = groups, 503
        await refused(identity, "a")


async def test_while_the_hub_is_away_a_token_is_good_for_the_os_user_who_showed_it() -> None:
    async with asked() as (hub, identity, time):
        other = Peer(1, 4712, 4712)
        await identity.identify(PEER, "a")
        hub.broken = 503
        time.advance(60)
        assert await identity.identify(PEER, "a") == ALICE
        assert "cannot be asked" in await refused(identity, "a", other)
        hub.broken = 0
        assert await identity.identify(other, "a") == ALICE
        hub.broken = 503
        time.advance(60)
        for peer in (PEER, other):
            assert await identity.identify(peer, "a") == ALICE


async def test_a_hub_that_hangs_costs_the_one_who_asks_and_no_other() -> None:
    async with asked() as (hub, identity, _time):
        await identity.identify(PEER, "a")
        identity._api._timeout = 2.0  # from now on: this answer may take longer
        hub.held = asyncio.Event()
        waiting = asyncio.create_task(refused(identity, "c"))
        await asyncio.sleep(0)
        assert await identity.identify(PEER, "a") == ALICE
        assert not waiting.done()
        assert "cannot be asked" in await waiting
        hub.held.set()


async def test_many_who_show_one_token_are_one_question() -> None:
    async with asked() as (hub, identity, _time):
        hub.held = asyncio.Event()
        tasks = [asyncio.create_task(identity.identify(PEER, "a")) for _ in range(200)]
        while not hub.asked["user"]:
            await asyncio.sleep(0)
        tasks[0].cancel()  # one who hangs up takes the answer from nobody
        hub.held.set()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert answers[1:] == [ALICE] * 199
        assert hub.asked == {"user": 1, "users/alice": 1}


async def test_thousands_of_wrong_tokens_cost_the_hub_little_and_others_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hubidentity, "REMEMBERED", 50)

    async with asked() as (hub, identity, time):
        await identity.identify(PEER, "a")
        answers = await all_of(identity, (f"wrong-{number}" for number in range(2_000)))
        assert all(isinstance(answer, IdentityRefused) for answer in answers)
        # Some are remembered, and push no good one out.
        again = await all_of(identity, (f"wrong-{number}" for number in range(2_000)))
        assert sum("does not know" in str(answer) for answer in again) == 50
        assert (len(identity._bad), len(identity._good)) == (50, 1)
        assert hub.asked["user"] == hubidentity.ONES_AT_ONCE
        assert not identity._asking
        time.advance(0.01)
        assert "Too many tokens" in await refused(identity, "c")
        # Another user is new meanwhile, and is let in.
        assert (await identity.identify(Peer(1, 4712, 4712), "c")).admin
        # Who was known is looked at again all the same.
        time.advance(60 - 0.01)
        hub.users["alice"] = ["staff"]
        assert (await identity.identify(PEER, "a")).groups == ("staff",)
        assert (await identity.identify(PEER, "c")).admin


async def test_wrong_tokens_of_many_users_are_bounded_for_the_hub() -> None:
    async with asked() as (hub, identity, _time):
        for uid in range(5000, 5004):  # more than the Hub is asked, of more than one may ask
            wrong = (f"wrong-{uid}-{number}" for number in range(250))
            await all_of(identity, wrong, Peer(0, uid, uid))
        assert hub.asked["user"] == hubidentity.NEW_AT_ONCE


async def test_ones_many_good_tokens_take_nobody_elses_turn_at_the_hub() -> None:
    async with asked() as (hub, identity, time):
        stale = await with_many(hub, identity, "carol", 40)
        await identity.identify(PEER, "a")
        time.advance(60)
        # As long as hers wait nobody answers them.
        hub.held, hub.holds = asyncio.Event(), {*stale, "c"}
        hers = [asyncio.create_task(identity.identify(PEER, token)) for token in stale]
        while not hub.waiting:
            await asyncio.sleep(0.01)
        bob = Peer(1, 4712, 4712)
        hub.tokens["b"] = "bob"
        hub.users["bob"] = []
        assert (await identity.identify(bob, "b")).environment == "bob"
        # Not known from before: what the Hub says now.
        del hub.tokens["a"]
        assert "does not know" in await refused(identity, "a")
        assert hub.waiting == hubapi.EACH
        hub.held.set()
        await asyncio.gather(*hers)


async def test_who_waits_for_a_turn_only_does_not_find_the_hub_away() -> None:
    async with asked() as (hub, identity, time):
        mine = await with_many(hub, identity, "alice", 60)
        time.advance(60)
        for token in mine:
            del hub.tokens[token]
        # Each is answered in time, and all one after another are not.
        identity._api._timeout, hub.slow = 1.0, 0.1
        answers = await all_of(identity, mine)
        assert all(isinstance(answer, IdentityRefused) for answer in answers)
        assert any("too many questions wait" in str(answer) for answer in answers)


async def test_a_hub_that_hangs_is_away_for_all_who_wait_at_once() -> None:
    async with asked() as (hub, identity, time):
        mine = await with_many(hub, identity, "alice", 40)
        time.advance(60)
        identity._api._timeout, hub.held = 1.0, asyncio.Event()
        assert await all_of(identity, mine) == [ALICE] * 40
        assert hub.asked["user"] == 40 + hubapi.EACH
        hub.held.set()


async def test_who_asks_again_and_again_spends_an_allowance_of_his_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hubidentity, "ONES_AT_ONCE", 20)
    monkeypatch.setattr(hubidentity, "PATIENCE", 0.2)

    async with asked() as (hub, identity, time):
        many = hubidentity.ONES_AT_ONCE + 10
        mine = [f"alices-{number}" for number in range(many)]
        hub.tokens |= dict.fromkeys(mine, "alice")
        for token in mine:
            time.advance(0.1)
            await identity.identify(PEER, token)
        time.advance(60)
        before = hub.asked["user"]
        answers = await all_of(identity, mine)
        refusals = [str(answer) for answer in answers if isinstance(answer, IdentityRefused)]
        assert refusals
        assert all("Too many tokens" in why for why in refusals)
        assert hub.asked["user"] - before == many - len(refusals) >= hubidentity.ONES_AT_ONCE
        # She is another person.
        assert (await identity.identify(PEER, "c")).admin


SCOPES = ["users:activity!user=alice", "access:servers!server=alice/gpu"]


@pytest.mark.parametrize(
    ("scopes", "environment"),
    [
        (SCOPES, "alice/gpu"),
        (["access:servers!server=alice/"], "alice"),
        (["access:servers!server=alice/made-up"], "alice"),
        ([*SCOPES, "access:servers!server=alice/other"], "alice"),
        (["access:servers!user=alice"], "alice"),
        (["access:servers!server=bob/gpu"], "alice"),
        (["no-access:servers!server=alice/gpu"], "alice"),
        (None, "alice"),
        ([None, 3], "alice"),
    ],
)
async def test_a_named_server_is_an_environment_where_it_runs(
    scopes: Any, environment: str
) -> None:
    async with asked(HubTrust(per_server=True)) as (hub, identity, _time):
        hub.scopes["a"] = scopes
        hub.servers["alice"] = ["", "gpu", "other"]
        assert (await identity.identify(PEER, "a")).environment == environment


@pytest.mark.parametrize(
    ("scopes", "lets_in"),
    [
        (["access:services!service=gpushare", "read:users:name!user=alice"], True),
        (["access:services"], True),
        (["read:users:name!user=alice"], False),
        (["access:services!service=gpushare-node", "access:servers!user=alice"], False),
        (None, False),
    ],
)
@pytest.mark.parametrize(("token", "environment"), [("a", "alice"), ("s", "service:gpushare")])
async def test_a_token_for_something_else_gets_no_gpu(
    scopes: Any, lets_in: bool, token: str, environment: str
) -> None:
    async with asked(HubTrust(service="gpushare")) as (hub, identity, _time):
        hub.scopes[token] = scopes
        for _ in range(2):
            if lets_in:
                assert (await identity.identify(PEER, token)).environment == environment
            else:
                assert "not for GPUs" in await refused(identity, token)
        assert hub.asked["user"] == 1


async def test_no_user_has_a_services_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    async with asked() as (hub, identity, _time):
        disguised = {"kind": "user", "name": "service:gpushare", "scopes": []}
        monkeypatch.setattr(hub, "answer", lambda *asked: (200, disguised))
        assert "does not know" in await refused(identity, "x")


# -- internal_ssl ----------------------------------------------------------------------------------


def internal_ssl(folder: Path) -> tuple[ssl.SSLContext, dict[str, str]]:
    """The Hub's side as JupyterHub makes it, and what it puts into a service's environment."""
    maker = certipy.Certipy(store_dir=str(folder))
    authority = maker.create_ca("hub-ca")["files"]["cert"]
    hub, own = (
        maker.create_signed_pair(name, "hub-ca", alt_names=["IP:127.0.0.1"])["files"]
        for name in ("hub-internal", "user-service")
    )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(hub["cert"], hub["key"])
    return context, {
        "JUPYTERHUB_SSL_CLIENT_CA": authority,
        "JUPYTERHUB_SSL_CERTFILE": own["cert"],
        "JUPYTERHUB_SSL_KEYFILE": own["key"],
    }


def test_a_hub_with_internal_ssl_is_asked_as_it_told_its_services(tmp_path: Path) -> None:
    tls, told = internal_ssl(tmp_path)

    async def ask(environ: dict[str, str]) -> int:
        async with a_hub().served(tls) as hub:
            api = HubApi(hub.url, trust=hub_trust(environ))
            try:
                return (await api.get("users", "alice", token=OWN)).status
            finally:
                api.close()

    assert asyncio.run(ask(told)) == 200
    # Neither side takes the other without: it is checked both ways.
    for left_out in told:
        with pytest.raises(HubAway):
            asyncio.run(ask({name: told[name] for name in told if name != left_out}))


def test_certificates_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    assert hub_trust({}) is None
    with pytest.raises(CertificatesUnreadable, match=r"JUPYTERHUB_SSL_CLIENT_CA=/none.*read them"):
        hub_trust({"JUPYTERHUB_SSL_CLIENT_CA": "/none"})
