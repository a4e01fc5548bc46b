"""``jupyter gpushare pool kernelspec``: a kernel in the launcher that runs on any host."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

from ..console.verb import Refused, UsageError, Verb, flag, option
from .wishes import Wish

_ENDS_IN = "any GPU in the pool"


class KernelspecApp(Verb):
    """Put a kernel into the launcher that starts on the host of the pool that has a
    free GPU, over ssh: "Python 3 · any GPU in the pool". It needs a home directory that all hosts
    share, and an ssh that asks for no password."""

    name = "pool kernelspec"
    examples = """
    jupyter gpushare pool kernelspec
    jupyter gpushare pool kernelspec --gpus 2 --memory 40GiB --as large
    """

    source = option("python3", "The kernel to start there.", name="from")
    as_name = option("gpushare-pool", "The name to give it.", name="as")
    gpus = option("1", "How many GPUs it is expected to ask for.")
    memory = option("", "Memory on each, like 24GiB. Left out: the quota's.")
    kind = option("", "The GPUs' name. Left out: any.")
    sys_prefix = flag("For everybody who uses this Python, and not for you alone.")

    def run(self, arguments: list[str]) -> int:
        from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

        from .provisioner import PROVISIONER

        wishes = {"gpus": self.gpus, "gpu_memory": self.memory, "gpu_kind": self.kind}
        try:
            wish = Wish.read(wishes)
        except ValueError as error:
            raise UsageError(str(error)) from None
        manager = KernelSpecManager()
        try:
            spec = manager.get_kernel_spec(self.source)
        except NoSuchKernel:
            known = ", ".join(sorted(manager.find_kernel_specs())) or "none"
            raise Refused(f"there is no kernel {self.source!r}; there is: {known}") from None
        title = f"{spec.display_name.removesuffix(' (ipykernel)')} · {_ENDS_IN}"
        if wish != Wish():
            title += f" ({wish})"
        config = {name: text for name, text in wishes.items() if text}
        made = {
            **spec.to_dict(),
            "display_name": title,
            "metadata": {
                **spec.metadata,
                "kernel_provisioner": {"provisioner_name": PROVISIONER, "config": config},
            },
        }
        with tempfile.TemporaryDirectory() as text:
            folder = Path(text, "spec")
            shutil.copytree(spec.resource_dir, folder)
            (folder / "kernel.json").write_text(json.dumps(made, indent=1), encoding="utf-8")
            where = manager.install_kernel_spec(
                str(folder),
                kernel_name=self.as_name,
                user=not self.sys_prefix,
                prefix=sys.prefix if self.sys_prefix else None,
            )
        return self.say(
            {"kernelspec": str(where), "display_name": title},
            f"The launcher shows {title!r}. Its kernelspec is {where}.",
        )
