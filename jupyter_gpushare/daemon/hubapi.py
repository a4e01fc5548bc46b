"""The few questions that the node manager asks JupyterHub, over HTTP.

Tokens travel in a header and appear in none of our messages: an error names the question that
failed, never the person who asked.

Questions wait here by turns, one line for each owner, so a person with hundreds of them does not
delay others. Time in the line does not count as the Hub's: our own load must not make the Hub look
away.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote
from weakref import WeakValueDictionary

from tornado.httpclient import AsyncHTTPClient, HTTPClientError, HTTPRequest

#: Files that JupyterHub names to its services and servers where it runs with ``internal_ssl``: the
#: authorities that sign its certificate, and the service's own certificate and key, for the Hub.
_AUTHORITIES: Final = "JUPYTERHUB_SSL_CLIENT_CA"
_OWN: Final = ("JUPYTERHUB_SSL_CERTFILE", "JUPYTERHUB_SSL_KEYFILE")
#: Bytes of an answer that are read at most; a Hub with ten thousand users needs less.
LARGEST: Final = 16 * 2**20
#: Questions that are open at once; more wait for their turn.
AT_ONCE: Final = 16
#: Of one owner.
EACH: Final = 2


class HubUnreachable(Exception):
    """The Hub did not answer in time, or not as itself; ``str()`` is a sentence's end."""


class CertificatesUnreadable(ValueError):
    """What ``internal_ssl`` gave this process cannot be used; ``str()`` says what to do."""


class HubAway(HubUnreachable):
    """Nobody answered, or with an error of the Hub's own (HTTP 5xx)."""


def hub_trust(environ: Mapping[str, str]) -> ssl.SSLContext | None:
    """By what the Hub's certificate is checked, and what the Hub is shown, if not as usual.

    Raises :class:`CertificatesUnreadable`.
    """
    if not environ.get(_AUTHORITIES):
        return None
    try:
        context = ssl.create_default_context(cafile=environ[_AUTHORITIES])
        if all(environ.get(name) for name in _OWN):
            context.load_cert_chain(*(environ[name] for name in _OWN))
    except OSError as error:
        files = ", ".join(f"{name}={environ.get(name)}" for name in (_AUTHORITIES, *_OWN))
        raise CertificatesUnreadable(
            f"The certificates of JupyterHub's internal_ssl cannot be read ({error}): {files}. Let "
            "this process's user read them, or take the variables away if the Hub has no "
            "internal_ssl."
        ) from error
    return context


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP status and the JSON that came with it (``None`` where there was none)."""

    status: int
    body: Any


class HubApi:
    """Asks the Hub's REST API at ``url`` (``http://…/hub/api``).

    ``timeout``: seconds from when a question is asked; for its turn it waits twice as long at most.
    ``trust``: of :func:`hub_trust`.
    """

    def __init__(
        self, url: str, timeout: float = 5.0, *, trust: ssl.SSLContext | None = None
    ) -> None:
        self.url = url.rstrip("/")
        self._trust = trust
        self._timeout = timeout
        self._client: AsyncHTTPClient | None = None
        #: By owner; one is there as long as somebody waits in it.
        self._gates = WeakValueDictionary[Hashable, asyncio.Semaphore]()
        # First come, first served: each owner has few here.
        self._open = asyncio.Semaphore(AT_ONCE)
        # When it did not answer, and how; until it does.
        self._away: tuple[float, str] | None = None

    async def get(self, *path: str, token: str, offset: int = 0, owner: Hashable = None) -> Answer:
        """GET ``path``, its parts quoted; a long list from ``offset`` on.

        ``owner`` says for whom, ``None`` for the node manager. Raises :class:`HubUnreachable`.
        """
        came = asyncio.get_running_loop().time()
        async with self._turn(owner):
            if self._away is not None and self._away[0] > came:
                # Another question has found that out meanwhile: not all wait that long.
                raise HubAway(self._away[1])
            return await self._ask(path, token, offset)

    @contextlib.asynccontextmanager
    async def _turn(self, owner: Hashable) -> AsyncIterator[None]:
        own = self._gates.setdefault(owner, asyncio.Semaphore(EACH))
        async with contextlib.AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(2 * self._timeout):
                    for gate in (own, self._open):
                        await stack.enter_async_context(gate)
            except TimeoutError:
                raise HubUnreachable("too many questions wait for it") from None
            yield

    async def _ask(self, path: tuple[str, ...], token: str, offset: int) -> Answer:
        if self._client is None:
            # Not in __init__: it belongs to the loop that runs now.
            self._client = AsyncHTTPClient(
                force_instance=True, max_clients=AT_ONCE, max_body_size=LARGEST
            )
        question = "/".join([self.url, *(quote(part, safe="") for part in path)])
        request = HTTPRequest(
            f"{question}?offset={offset}" if offset else question,
            headers={"Authorization": f"token {token}", "Accept": "application/json"},
            connect_timeout=self._timeout,
            request_timeout=self._timeout,
            follow_redirects=False,
            ssl_options=self._trust,
        )
        try:
            response = await self._client.fetch(request, raise_error=False)
        except (OSError, HTTPClientError) as error:
            self._away = (
                asyncio.get_running_loop().time(),
                f"it did not answer ({type(error).__name__})",
            )
            raise HubAway(self._away[1]) from None
        except ValueError as error:
            raise HubUnreachable(f"it cannot be asked ({type(error).__name__})") from None
        self._away = None
        if response.code >= 500:
            raise HubAway(f"it answered with HTTP {response.code}")
        try:
            body = json.loads(response.body) if response.body else None
        except (ValueError, RecursionError):
            if response.code == 200:
                raise HubUnreachable("what answered is no Hub") from None
            body = None
        return Answer(response.code, body)

    def close(self) -> None:
        """Drop what is open."""
        if self._client is not None:
            self._client.close()
            self._client = None
