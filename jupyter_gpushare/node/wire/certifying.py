"""The pool renews this host's certificate, over the connection that it has already."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from ...daemon.membership import BadMembership, Membership
from ...protocol.calls import Call, CertifyParams
from ...protocol.errors import Reason
from ...protocol.messages import Method
from .guests import Guest


class Certifying:
    """Answers ``pool.certify``. ``spawn`` runs what takes its time: files are written."""

    def __init__(
        self,
        membership: Membership | None,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        log: logging.Logger,
    ) -> None:
        self._membership = membership
        self._log = log
        self.calls = {Method.POOL_CERTIFY: lambda guest, call: spawn(self._answer(guest, call))}

    async def _answer(self, guest: Guest, call: Call) -> None:
        """Ask for a certificate, or take one."""
        params: CertifyParams = call.params
        try:
            result = await asyncio.to_thread(self._certify, params)
        except BadMembership as error:
            guest.conn.error(call.id, Reason.BAD_REQUEST, str(error))
        except OSError as error:
            why = f"The certificate cannot be written down: {error}."
            self._log.error("%s", why)
            guest.conn.error(call.id, Reason.UNAVAILABLE, why)
        else:
            guest.conn.reply(call.id, result)

    def _certify(self, params: CertifyParams) -> dict[str, str]:
        if self._membership is None:
            raise BadMembership("This host is in no pool.")
        if params.certificates is None or params.authorities is None:
            return {"csr": self._membership.request()}
        self._membership.renew(params.certificates, params.authorities)
        self._log.info("The pool renewed this host's certificate")
        return {}
