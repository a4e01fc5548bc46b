"""What the Hub's service asks of the pool, which is one of its roles: settings, and to run."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final

from jupyter_core.application import JupyterApp

from .configuration import Pool
from .serving import CannotServe, serving

if TYPE_CHECKING:
    from .hubpool import HubPool

#: Addresses of the pages at which no other host reaches them.
_HERE_ONLY: Final = (None, "localhost", "127.0.0.1", "::1", "0.0.0.0", "::")


def settings_of(service: JupyterApp, pages: str | None) -> Pool:
    """The pool's; where no address is set, hosts join where they reach ``pages``, a host's name."""
    settings = Pool(parent=service)
    if "address" not in service.config.get("Pool", {}) and pages not in _HERE_ONLY:
        settings.address = pages
    return settings


@contextlib.asynccontextmanager
async def running(service: JupyterApp, pages: str | None) -> AsyncIterator[HubPool]:
    """The pool, and the Hub's groups as it is told them. Raises `SystemExit` with a sentence."""
    async with contextlib.AsyncExitStack() as stack:
        try:
            settings = settings_of(service, pages)
            manager = await stack.enter_async_context(serving(settings, service.log))
            # What they import needs what the pool needs.
            from .hubgroups import following
            from .hubpool import HubPool

            await stack.enter_async_context(following(manager, service.log))
        except CannotServe as error:
            raise SystemExit(str(error)) from error
        yield HubPool(manager)
