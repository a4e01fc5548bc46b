"""``jupyter gpushare release LEASE``: give a lease back; an administrator may take any."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .leases import short
from .node import connect, whole_status
from .verb import Refused, UsageError, Verb, option

if TYPE_CHECKING:
    from ..protocol import documents as doc

#: Characters of a whole lease name; anything shorter may be the beginning of one.
FULL = 32


class ReleaseApp(Verb):
    """Give leases back."""

    name = "release"
    arguments = "LEASE..."
    description = """Give a lease of yours back, or leave the queue with it. `jupyter gpushare
    leases` shows their names. With --revoke an administrator ends anybody's lease; its owner is
    told the reason. The task itself goes on: its GPU is free for others when its memory is really
    gone."""
    examples = """
    jupyter gpushare release 3f2a9c
    jupyter gpushare release 3f2a9c --revoke "maintenance at 18:00"
    """

    revoke = option("", "End somebody's lease, with this reason (administrators).")

    def run(self, arguments: list[str]) -> int:
        if not arguments:
            raise UsageError("release which lease? `jupyter gpushare leases` lists them.")
        from ..protocol.messages import Method

        done = []
        with connect() as node:
            known = None
            for lease in arguments:
                if len(lease) < FULL:
                    known = known or whole_status(node)["leases"]
                    lease = whole_name(lease, known)
                if self.revoke:
                    answer = node.call(Method.LEASE_REVOKE, lease=lease, reason=self.revoke)
                else:
                    answer = node.call(Method.RELEASE, lease=lease)
                done.append({"lease": lease, "state": answer["state"]})
                if not self.json:
                    print(f"{short(lease)}: {answer['state']}")
        if self.json:
            self.print_json({"leases": done})
        return 0


def whole_name(beginning: str, leases: list[doc.Lease]) -> str:
    """The one lease that begins so; ``beginning`` itself when none does (the node says why not).

    Raises `Refused` when several do.
    """
    ids = (lease["id"] for lease in leases)  # others' have none for us
    names = [name for name in ids if name is not None and name.startswith(beginning)]
    if len(names) > 1:
        raise Refused(
            f"{len(names)} leases begin with {beginning!r}: type more of it.", "bad_request"
        )
    return names[0] if names else beginning
