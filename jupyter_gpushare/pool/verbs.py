"""``jupyter gpushare pool …``: the administrator's view of several hosts as one.

Each verb asks the running pool at its socket (:class:`AtPool`) and shows the answer, as a table or
as JSON. The pool decides who may ask, and what may be done; here words are read and written.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, ClassVar

from ..cli import quota as quotas
from ..console.node import Node, NodeSilent
from ..console.verb import Refused, UsageError, Verb, flag, number, option
from ..figures import counted, format_duration
from ..protocol.poolcalls import POOL_SOCKET, PoolMethod
from ..protocol.sizes import MOST_GPUS, parse_size
from ..protocol.tables import clean, listing
from ..protocol.times import parse_duration
from ..satellites import ENGINES


def _socket() -> str:
    from jupyter_core.paths import jupyter_data_dir

    own = Path(jupyter_data_dir(), "gpushare-pool", "pool.sock")
    return str(own) if own.exists() and os.geteuid() != 0 else POOL_SOCKET


class AtPool(Verb):
    """A verb that asks the pool; on the host where it runs, as root or its OS user."""

    socket = option("", f"The pool's socket. Left out: {POOL_SOCKET}, or that of your own pool.")

    def connect(self) -> Node:
        """Raises `NodeSilent` and `NodeRefused`."""
        path = self.socket or _socket()
        if not os.path.exists(path):
            raise NodeSilent(
                f"There is no pool at {path} on this host. Start it (`jupyter gpushare pool serve`,"
                " or setup(c, pool=True) with JupyterHub), or say where its socket is:"
                " --socket=FOLDER/pool.sock."
            )
        return Node(path, None, "pool")

    def ask(self, method: PoolMethod, **params: Any) -> dict[str, Any]:
        """One call. Raises `NodeSilent` and `NodeRefused`."""
        with self.connect() as pool:
            return pool.call(method, **params)

    def one(self, arguments: list[str], what: str) -> str:
        """The only argument. Raises `UsageError`."""
        if len(arguments) != 1:
            raise UsageError(f"say which {what}: {self.command()} {what.upper()}")
        return arguments[0]


class HostsApp(AtPool):
    """List the pool's hosts: whether they can be reached, their GPUs, who waits, what
    holds them and until when, and which are out of service."""

    name = "pool hosts"

    def run(self, arguments: list[str]) -> int:
        answer = self.ask(PoolMethod.HOSTS)
        none = "No host has joined. `jupyter gpushare pool token` makes a token for one."
        return self.say(answer, listing([_row(host) for host in answer["hosts"]], none))


def _row(host: dict[str, Any]) -> dict[str, object]:
    report = host["report"] or {"gpus": []}
    gpus, free = report["gpus"], [gpu for gpu in report["gpus"] if gpu["out"] is None]
    # What a host that is lost said of its queue is of no use to anybody.
    now = report if host["connected"] else {}
    wait = now.get("expected_wait")
    return {
        "host": host["host"],
        "gpus": len(gpus) if host["report"] else None,
        "free": sum(gpu["exclusive_free"] for gpu in free) if "queue" in now else None,
        "kind": ", ".join(sorted({gpu["kind"] for gpu in gpus})) or None,
        "waiting": now.get("queue"),
        "expected wait": None if wait is None else format_duration(wait),
        "held by": None if host["held"] is None else host["held"]["text"],
        "state": _state(host),
    }


def _state(host: dict[str, Any]) -> str:
    drain = host["drain"]
    if not host["connected"]:
        until = host["until"]
        said = f"cannot be reached: {host['problem']}"
        if until is not None and until > time.time():
            said += f" Its loans count until {_clock(until)}."
        return said
    reason = drain["reason"] if drain else host["report"]["draining"]
    if reason is not None:
        return f"out of service ({reason}); {'empty' if host['empty'] else 'not empty yet'}"
    return "in service"


def _clock(unix: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix))


class WhereApp(AtPool):
    """Rank the hosts for somebody who wants GPUs, the best first, and say why."""

    name = "pool where"
    arguments = "ENVIRONMENT"
    examples = """
    jupyter gpushare pool where alice --gpus 1 --memory 24GiB
    """

    gpus = option(1, "How many GPUs on one host.", read=number(0, MOST_GPUS))
    memory = option(None, "Memory on each GPU, like 24GiB. Left out: whole GPUs.", read=parse_size)
    kind = option("", "The GPUs' name. Left out: any.")

    def run(self, arguments: list[str]) -> int:
        who = self.one(arguments, "environment")
        wish = {"gpus": self.gpus, "memory": self.memory, "kind": self.kind or None}
        answer = self.ask(PoolMethod.WHERE, environment=who, **wish)
        rows = [
            {
                "host": one["host"],
                "fits": "now" if one["fits_now"] else "later" if one["possible"] else "never",
                "why": " ".join(one["reasons"]),
            }
            for one in answer["hosts"]
        ]
        return self.say(answer, listing(rows, "No host has joined."))


class TokenApp(AtPool):
    """Make a token by which a host joins the pool: it works once, for an hour. With a
    HOST only that host can use it, also one that is in the pool already."""

    name = "pool token"
    arguments = "[HOST]"

    def run(self, arguments: list[str]) -> int:
        if len(arguments) > 1:
            raise UsageError("name one host, or none")
        answer = self.ask(PoolMethod.TOKEN, host=arguments[0] if arguments else None)
        return self.say(answer, str(answer["token"]))


class OneHost(AtPool):
    """A verb that changes one host, and says how that host is then."""

    arguments = "HOST"

    def show(self, host: dict[str, Any]) -> int:
        return self.say(host, f"{clean(host['host'])}: {clean(_state(host))}")


class DrainApp(OneHost):
    """Take a host out of service: no new lease starts there, idle kernels are asked
    to give their GPUs back, and everybody who waits reads the reason. What runs goes on. With
    --wait the verb ends when the host is empty."""

    name = "pool drain"
    examples = """
    jupyter gpushare pool drain b --reason "a new driver on Friday" --wait
    """

    reason = option("", "Why, for everybody who waits.")
    wait = flag("Wait until no lease has anything on its GPUs.")

    def run(self, arguments: list[str]) -> int:
        name = self.one(arguments, "host")
        if not self.reason.strip():
            raise UsageError('say why, for everybody who waits: --reason "a new driver on Friday"')
        host = self.ask(PoolMethod.DRAIN, host=name, reason=self.reason.strip())
        while self.wait and not host["empty"]:
            time.sleep(1.0)
            now = [one for one in self.ask(PoolMethod.HOSTS)["hosts"] if one["host"] == name]
            if not now or now[0]["drain"] is None:
                raise Refused(f"somebody put {name} back into service, or forgot it")
            host = now[0]
        return self.show(host)


class ResumeApp(OneHost):
    """Put a host back into service. The first in line get its GPUs at once."""

    name = "pool resume"

    def run(self, arguments: list[str]) -> int:
        return self.show(self.ask(PoolMethod.RESUME, host=self.one(arguments, "host")))


class ForgetApp(AtPool):
    """Forget a host that will not come back: what it was lent is free for other hosts
    at once. Say it only of a host on which nothing runs any more: the pool cannot know."""

    name = "pool forget"
    arguments = "HOST"

    def run(self, arguments: list[str]) -> int:
        answer = self.ask(PoolMethod.FORGET, host=self.one(arguments, "host"))
        return self.say(answer, f"{clean(answer['host'])} is forgotten.")


class RotateApp(AtPool):
    """Have a new authority sign the pool's certificates. Hosts that can be reached
    know it in a moment, others when they are back; within 30 days nobody has to join again."""

    name = "pool rotate"

    def run(self, arguments: list[str]) -> int:
        answer = self.ask(PoolMethod.ROTATE)
        return self.say(
            answer, "A new authority signs from now on; hosts get new certificates by themselves."
        )


class LendApp(AtPool):
    """Keep whole GPUs of one host ready for somebody for a time, whether they ask
    there or not. Prints the loan's id, with which `pool return` ends it early."""

    name = "pool lend"
    arguments = "ENVIRONMENT"
    examples = """
    jupyter gpushare pool lend alice --gpus 2 --for 3h --host b
    """

    gpus = option(1, "How many GPUs, all on one host.", read=number(1, MOST_GPUS))
    seconds = option(
        0.0,
        "For how long: 30m, 12h, 7d, or seconds.",
        lambda text: parse_duration(text, 1.0),
        name="for",
    )
    host = option("", "The host. Left out: where most are free.")

    def run(self, arguments: list[str]) -> int:
        who = self.one(arguments, "environment")
        if not self.seconds:
            raise UsageError("say for how long: --for 3h")
        wish = {"gpus": self.gpus, "seconds": self.seconds, "host": self.host or None}
        answer = self.ask(PoolMethod.LEND_GPUS, environment=who, **wish)
        return self.say(
            answer,
            f"{clean(answer['host'])} keeps {counted(self.gpus, 'GPU')} for {clean(who)} for"
            f" {format_duration(self.seconds)}. The loan is {answer['id']}.",
        )


class ReturnApp(AtPool):
    """End a loan of `pool lend` before its time. What runs goes on."""

    name = "pool return"
    arguments = "LOAN"

    def run(self, arguments: list[str]) -> int:
        answer = self.ask(PoolMethod.RETURN_GPUS, loan=self.one(arguments, "loan"))
        return self.say(answer, f"The loan {clean(answer['loan'])} has ended.")


class HistoryApp(AtPool):
    """Who edited quotas, took hosts out of service, let hosts join; newest first."""

    name = "pool history"

    limit = option(50, "At most so many.", read=number(1, 1000))

    def run(self, arguments: list[str]) -> int:
        answer = self.ask(PoolMethod.HISTORY, limit=self.limit)
        rows = [
            {"when": _clock(one["wall"]), "who": one["by"], "what": one["text"]}
            for one in answer["events"]
        ]
        return self.say(answer, listing(rows, "Nothing was done yet."))


# -- quotas ----------------------------------------------------------------------------------------


class QuotaListApp(AtPool, quotas.QuotaListApp):
    """List quotas over all hosts, and where they come from."""

    name = "pool quota list"


class QuotaSetApp(AtPool, quotas.QuotaSetApp):
    """Set what somebody, a group's members or everybody else may hold on all hosts
    together. What is left out stays as it is now."""

    name = "pool quota set"
    examples = """
    jupyter gpushare pool quota set alice --gpus 2
    jupyter gpushare pool quota set --group students --gpus 1 --gpu-hours 100 --per month
    """

    def smallest(self, node: Node) -> int:
        raise Refused("hosts may have GPUs of several sizes: say a size for --memory, such as 8GiB")


class QuotaUnsetApp(AtPool, quotas.QuotaUnsetApp):
    """Forget the quota that was set: the configured one counts again."""

    name = "pool quota unset"


class QuotaApp(QuotaListApp):
    """Quotas over all hosts (administrators). Alone it lists them."""

    name = "pool quota"
    arguments = "[list|set|unset]"
    subcommands: ClassVar[Any] = {
        "list": ("pool.verbs.QuotaListApp", "List quotas and where they come from."),
        "set": ("pool.verbs.QuotaSetApp", "Set a quota."),
        "unset": ("pool.verbs.QuotaUnsetApp", "Forget a quota that was set."),
    }


# -- groups that breathe ---------------------------------------------------------------------------


class GroupListApp(AtPool):
    """List the groups with GPUs of their own: how many, how many they may borrow and
    lend, and how many their members use now."""

    name = "pool group list"

    def run(self, arguments: list[str]) -> int:
        answer = self.ask(PoolMethod.GROUP_LIST)
        rows = [
            {
                "group": one["name"],
                "own": one["nominal"],
                "may borrow": "all" if one["borrowing"] is None else one["borrowing"],
                "may lend": "all" if one["lending"] is None else one["lending"],
                "uses": one["used"],
                "of others": max(0, one["used"] - one["nominal"]),
            }
            for one in answer["groups"]
        ]
        return self.say(answer, listing(rows, "No group has GPUs of its own."))


class GroupSetApp(AtPool):
    """Give a group GPUs of its own. Its members may use those of others while these
    leave them unused, and others may use theirs; a group that wants its own gets them back."""

    name = "pool group set"
    arguments = "GROUP"
    examples = """
    jupyter gpushare pool group set physics --nominal 8 --borrowing 4
    """

    nominal = option(None, "GPUs of its own.", read=number(0, MOST_GPUS))
    borrowing = option(
        None, "Most GPUs that it may borrow. Left out: no bound.", read=number(0, MOST_GPUS)
    )
    lending = option(
        None, "Most of its own GPUs that it lends. Left out: all.", read=number(0, MOST_GPUS)
    )

    def run(self, arguments: list[str]) -> int:
        name = self.one(arguments, "group")
        if self.nominal is None:
            raise UsageError("say how many GPUs are its own: --nominal 8")
        more = {"borrowing": self.borrowing, "lending": self.lending}
        answer = self.ask(PoolMethod.GROUP_SET, group=name, nominal=self.nominal, **more)
        return self.say(answer, f"{clean(name)} has {counted(self.nominal, 'GPU')} of its own.")


class GroupUnsetApp(AtPool):
    """Take a group's own GPUs back: only its members' quotas bound it."""

    name = "pool group unset"
    arguments = "GROUP"

    def run(self, arguments: list[str]) -> int:
        answer = self.ask(PoolMethod.GROUP_UNSET, group=self.one(arguments, "group"))
        return self.say(answer, f"{clean(answer['group'])} has no GPUs of its own.")


class GroupApp(GroupListApp):
    """Groups with GPUs of their own (administrators). Alone it lists them."""

    name = "pool group"
    arguments = "[list|set|unset]"
    subcommands: ClassVar[Any] = {
        "list": ("pool.verbs.GroupListApp", "List them, and what they borrow."),
        "set": ("pool.verbs.GroupSetApp", "Give a group GPUs of its own."),
        "unset": ("pool.verbs.GroupUnsetApp", "Take them back."),
    }


class PoolApp(HostsApp):
    """Several hosts as one: who may hold what on all of them, and where to start.
    Alone it lists the hosts."""

    name = "pool"
    arguments = "VERB"
    subcommands: ClassVar[Any] = {
        "serve": ("pool.app.PoolApp", "Run the pool alone, without a Hub."),
        "token": ("pool.verbs.TokenApp", "Make a token by which a host joins."),
        "join": ("pool.joinverb.JoinApp", "Make this host one of a pool."),
        "hosts": ("pool.verbs.HostsApp", "List hosts."),
        "where": ("pool.verbs.WhereApp", "Rank the hosts for somebody."),
        "drain": ("pool.verbs.DrainApp", "Take a host out of service."),
        "resume": ("pool.verbs.ResumeApp", "Put a host back into service."),
        "lend": ("pool.verbs.LendApp", "Keep whole GPUs ready for somebody for a time."),
        "return": ("pool.verbs.ReturnApp", "End such a loan early."),
        "forget": ("pool.verbs.ForgetApp", "Forget a host that will not come back."),
        "quota": ("pool.verbs.QuotaApp", "Quotas over all hosts: list, set, unset."),
        "group": ("pool.verbs.GroupApp", "Groups with GPUs of their own: list, set, unset."),
        "history": ("pool.verbs.HistoryApp", "Who did what."),
        "kernelspec": (
            "starts.kernelspec.KernelspecApp",
            "Put a kernel for any host into the launcher.",
        ),
        "rotate": ("pool.verbs.RotateApp", "Have a new authority sign certificates."),
        **ENGINES,
    }
