"""The pool renews its hosts' certificates over the links that it has, before they expire."""

from __future__ import annotations

from ..link.nodelink import NodeLink
from ..protocol.messages import Method
from .pki import Authority


async def renew(link: NodeLink, authority: Authority, host: str, now: float) -> bool:
    """Give a host its next certificate if that is due, or if the authority was rotated since.

    Returns whether it has a new one. The next connection shows it: drop the link, and see that it
    works. To be called once an hour or so, and after a rotation. Raises
    :class:`~jupyter_gpushare.link.errors.NodeProblem` and :class:`.pki.BadRequest`.
    """
    if link.shown is None or authority.is_current(link.shown, now):
        return False
    asked = await link.call(Method.POOL_CERTIFY)
    signed = authority.sign(str(asked.get("csr")), host, now)
    await link.call(Method.POOL_CERTIFY, certificates=signed, authorities=authority.authorities)
    return True
