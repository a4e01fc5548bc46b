"""The few questions that the node manager asks JupyterHub, over HTTP.

Tokens travel in a header and appear in no message of ours: an error says which
question failed, never who asked.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from tornado.httpclient import AsyncHTTPClient, HTTPClientError, HTTPRequest

#: Bytes of an answer that are read at most; a Hub with ten thousand users needs less.
LARGEST: Final = 16 * 2**20
#: Questions that are open at once; more wait for their turn.
AT_ONCE: Final = 16


class HubUnreachable(Exception):
    """The Hub did not answer in time, or not as itself; ``str()`` is a sentence's end."""


class HubAway(HubUnreachable):
    """Nobody answered, or with an error of the Hub's own (HTTP 5xx)."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP status and the JSON that came with it (``None`` where there was none)."""

    status: int
    body: Any


class HubApi:
    """Asks the Hub's REST API at ``url`` (``http://…/hub/api``); ``timeout`` in seconds."""

    def __init__(self, url: str, timeout: float = 5.0) -> None:
        self.url = url.rstrip("/")
        self._timeout = timeout
        self._client: AsyncHTTPClient | None = None

    async def get(self, *path: str, token: str, offset: int = 0) -> Answer:
        """GET ``path``, its parts quoted; a long list from ``offset`` on.

        Raises :class:`HubUnreachable`.
        """
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
        )
        try:
            response = await self._client.fetch(request, raise_error=False)
        except (OSError, HTTPClientError) as error:
            raise HubAway(f"it did not answer ({type(error).__name__})") from None
        except ValueError as error:
            raise HubUnreachable(f"it cannot be asked ({type(error).__name__})") from None
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
