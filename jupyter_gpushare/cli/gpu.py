"""``jupyter gpushare gpu list|drain|resume``: take a GPU out of service, and put it back."""

from __future__ import annotations

from typing import Any, ClassVar

from ..console.node import connect
from ..console.verb import Refused, UsageError, Verb, flag, option
from ..figures import counted, format_size
from ..protocol import said
from ..protocol.holding import gpu_number
from ..protocol.messages import Method
from ..protocol.tables import listing
from ..protocol.times import parse_duration


class GpuListApp(Verb):
    """List the node's GPUs, and which are out of service."""

    name = "gpu list"

    def run(self, arguments: list[str]) -> int:
        with connect() as node:
            status = node.call(Method.STATUS)
        gpus, now = status["gpus"], status["node"]["time"]
        rows = [
            {
                "gpu": gpu_number(gpu),
                "uuid": gpu["uuid"],
                "name": gpu["name"],
                "memory": format_size(gpu["memory"]),
                # Why it takes no leases; else its health.
                "service": said.texts(said.about(gpu, "problem") or said.about(gpu, "health"), now),
            }
            for gpu in gpus
        ]
        return self.say({"gpus": gpus}, listing(rows, "No GPUs."))


class ServiceVerb(Verb):
    """A verb that takes GPUs out of service, or puts them back."""

    arguments = "GPU..."
    whole = flag("All GPUs of the node, and those that come later.", name="all")

    def call(self, named: list[str], each: Method, every: Method, **params: Any) -> int:
        """Call ``each`` for these GPUs, or ``every`` for the node; print what it changed."""
        if self.whole and named:
            raise UsageError("name GPUs, or say --all.")
        if not self.whole and not named:
            raise UsageError("which GPU? `jupyter gpushare gpu list` lists them; or --all.")
        with connect() as node:
            if self.whole:
                answer = node.call(every, **params)
                what = "out of service" if every is Method.NODE_DRAIN else "back in service"
                return self.say(answer, f"{counted(answer['count'], 'GPU')} {what}")
            gpus, done = node.call(Method.STATUS)["gpus"], []
            for name, uuid in [(name, _uuid(name, gpus)) for name in named]:
                done.append(node.call(each, gpu=uuid, **params))
                if not self.json:
                    print(f"GPU {name}: {_service(done[-1])}")
        if self.json:
            self.print_json({"gpus": done})
        return 0


def _service(answer: dict[str, Any]) -> str:
    out = answer["out_of_service"]
    already = "" if answer["changed"] else "already "
    if out is None:
        return f"{already}in service"
    left = {0: "empty", 1: "1 lease there"}.get(out["leases"], f"{out['leases']} leases there")
    return f"{already}out of service ({left})"


class GpuDrainApp(ServiceVerb):
    """Take GPUs out of service (administrators), each named by its index or UUID.
    They take nothing new from now on. Code that runs there goes on until it ends. Idle kernels
    are asked to give these GPUs back and get others. Waiting people read the reason. The GPUs
    stay out of service until `jupyter gpushare gpu resume`, also after a restart. --all takes the
    whole node out of service, with the GPUs that come later."""

    name = "gpu drain"
    examples = """
    jupyter gpushare gpu drain 1 --reason "its fan is replaced on Friday"
    jupyter gpushare gpu drain --all --reason "the cooling is repaired"
    """

    reason = option("", "Why, for everybody who waits.")
    within: float | None = option(
        None,
        """They are to be empty after this time: programs that can save their state (on_preempt, run
        --requeue) are asked to stop before. Left out: a time that was said before stays, and
        without one they run until they end.""",
        parse_duration,
    )

    def run(self, arguments: list[str]) -> int:
        if (arguments or self.whole) and not self.reason.strip():
            raise UsageError('say why, for everybody who waits: --reason "its fan is replaced"')
        said = {"reason": self.reason, "within": self.within}
        return self.call(arguments, Method.GPU_DRAIN, Method.NODE_DRAIN, **said)


class GpuResumeApp(ServiceVerb):
    """Put GPUs back into service (administrators), each named by its index or
    UUID. The first in line gets them at once. --all puts those back that were taken out with --all,
    or by the pool; a GPU that was taken out by itself stays out."""

    name = "gpu resume"

    def run(self, arguments: list[str]) -> int:
        return self.call(arguments, Method.GPU_RESUME, Method.NODE_RESUME)


class GpuApp(GpuListApp):
    """GPUs: list them; take one out of service and put it back (administrators)."""

    name = "gpu"
    arguments = "list|drain|resume"
    subcommands: ClassVar[Any] = {
        "list": ("cli.gpu.GpuListApp", "List GPUs, and which are out of service."),
        "drain": ("cli.gpu.GpuDrainApp", "Take a GPU out of service."),
        "resume": ("cli.gpu.GpuResumeApp", "Put a GPU back into service."),
    }


def _uuid(name: str, gpus: list[dict[str, Any]]) -> str:
    """The UUID of the GPU with this number, or this UUID. Raises `Refused` when there is none.

    A UUID that no GPU has now is passed on: one may be out of service and out of the node.
    """
    if not name.replace(":", "", 1).isdecimal():
        return name
    for gpu in gpus:
        if gpu_number(gpu) == name:
            return str(gpu["uuid"])
    parts = [gpu_number(gpu) for gpu in gpus if str(gpu["index"]) == name]
    if parts:
        raise Refused(
            f"GPU {name} is in MIG mode: say which of its instances ({', '.join(parts)}).",
            "unknown_gpu",
        )
    raise Refused(f"this node has no GPU {name}: `jupyter gpushare gpu list`.", "unknown_gpu")
