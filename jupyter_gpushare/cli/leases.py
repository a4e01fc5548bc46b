"""``jupyter gpushare leases``: lists the holders of GPUs, and the waiting requests."""

from __future__ import annotations

from ..console.node import connect, whole_status
from ..console.verb import Verb, flag


class LeasesApp(Verb):
    """List the leases: who holds which GPU, and who waits. What belongs to other
    people is shown without names, unless you are an administrator. The leases of one job, such
    as an elastic training or a sweep, are one line."""

    name = "leases"
    examples = """
    jupyter gpushare leases --mine
    jupyter gpushare leases --each
    jupyter gpushare leases --json
    """

    mine = flag("Only your own leases.")
    each = flag("A line for each lease of a job, too.")

    def run(self, arguments: list[str]) -> int:
        from ..client.words.render import show_leases

        with connect() as node:
            status = whole_status(node)
        leases = [lease for lease in status["leases"] if lease["mine"] or not self.mine]
        shown = {**status, "leases": leases}
        return self.say({"leases": leases}, show_leases(shown, waiting=True, each=self.each).text)
