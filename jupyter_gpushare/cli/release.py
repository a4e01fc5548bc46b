"""``jupyter gpushare release LEASE``: give a lease back; an administrator may take any."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from ..console.node import connect, whole_status
from ..console.verb import Refused, UsageError, Verb, option
from ..protocol.messages import Method

if TYPE_CHECKING:
    from ..protocol import documents as doc

#: A whole lease name; anything else may be the beginning of one, or a job's name.
WHOLE: Final = re.compile("[0-9a-f]{32}")


class ReleaseApp(Verb):
    """Give a lease of yours back, or leave the queue with it. `jupyter gpushare
    leases` shows their names. The name of a job, such as an elastic training, stands for all its
    leases. With --revoke an administrator ends anybody's lease; its owner is told the reason. The
    task itself goes on: its GPU is free for others when its memory is really gone."""

    name = "release"
    arguments = "LEASE..."
    examples = """
    jupyter gpushare release 3f2a9c
    jupyter gpushare release digits
    jupyter gpushare release 3f2a9c --revoke "maintenance at 18:00"
    """

    revoke = option("", "End somebody's lease, with this reason (administrators).")

    def run(self, arguments: list[str]) -> int:
        if not arguments:
            raise UsageError("release which lease? `jupyter gpushare leases` lists them.")
        from ..client.words.render import short

        done = []
        with connect() as node:
            known = None
            named = []
            for word in arguments:
                if WHOLE.fullmatch(word):
                    named.append(word)
                else:
                    known = known or whole_status(node)["leases"]
                    named += of_job(word, known) or [whole_name(word, known)]
            for lease in named:
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


def of_job(name: str, leases: list[doc.Lease]) -> list[str]:
    """The viewer's own leases of the job with this name."""
    return [
        lease["id"]
        for lease in leases
        if lease["mine"] and lease["id"] is not None and lease.get("job") == name
    ]


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
