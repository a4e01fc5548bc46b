"""``jupyter gpushare kernelspec``: any kernel of this host under a lease, and back."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Final

from ..console.verb import Refused, UsageError, Verb, option
from ..protocol.sizes import parse_gpus, parse_memory

_OURS: Final = "gpushare"  # where we note what we made, in a kernelspec's metadata
_NAMES: Final = "kernel_provisioner"


def _read(parse: Callable[[str], object]) -> Callable[[str], str]:
    """Reads a text that is parsed again where it is used. Raises `ValueError`."""

    def read(text: str) -> str:
        parse(text)
        return text

    return read


class KernelspecApp(Verb):
    """Kernels without the import hook: wrap, unwrap."""

    name = "kernelspec"
    arguments = "wrap|unwrap NAME"
    description = """Put a kernel that has nothing of ours, in R, Julia, C++ or another Python,
    under a lease; or take it out again."""
    subcommands: ClassVar[Any] = {
        "wrap": ("kernels.verb.WrapApp", "Start a kernel under a lease from now on."),
        "unwrap": ("kernels.verb.UnwrapApp", "Start it as before."),
    }

    def run(self, arguments: list[str]) -> int:
        raise UsageError("wrap or unwrap? jupyter gpushare kernelspec wrap ir")


class _OfOne(Verb):
    arguments = "NAME"

    def spec(self, arguments: list[str]) -> Any:
        """The kernelspec that is meant."""
        from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

        if len(arguments) != 1:
            raise UsageError(f"which kernel? {self.command()} ir")
        self.manager = KernelSpecManager()
        try:
            return self.manager.get_kernel_spec(arguments[0])
        except NoSuchKernel:
            known = ", ".join(sorted(self.manager.find_kernel_specs())) or "none"
            raise Refused(f"there is no kernel {arguments[0]!r}; there is: {known}") from None


class WrapApp(_OfOne):
    """Start a kernel under a lease from now on."""

    name = "kernelspec wrap"
    description = """Start a kernel under a lease from now on. The kernelspec is copied under the
    same name to where Jupyter finds it first and you may write; where it is there, it is changed.
    """
    examples = """
    jupyter gpushare kernelspec wrap ir
    jupyter gpushare kernelspec wrap julia-1.11 --gpus 2 --memory 24GiB
    jupyter gpushare kernelspec wrap xcpp17 --as xcpp17-gpu --lease first-cell
    """

    as_name = option("", "The name of the new kernel. Default: the same.", name="as")
    gpus = option(
        "", "GPUs to ask for, where the notebook names none. Default: 1.", _read(parse_gpus)
    )
    memory = option(
        "", "Memory on each, like 24GiB. Default: what the quota gives.", _read(parse_memory)
    )
    lease = option(
        "start",
        "When the lease is taken: at the kernel's start or at its first cell; that where the host "
        "has no more GPUs than it asks for. Default: start.",
        choices=("start", "first-cell"),
    )

    def run(self, arguments: list[str]) -> int:
        from .provisioner import PROVISIONER

        spec, name = self.spec(arguments), self.as_name or arguments[0]
        before = spec.metadata.get(_NAMES, {}).get("provisioner_name", "local-provisioner")
        if before not in ("local-provisioner", PROVISIONER):
            raise Refused(f"the kernel {arguments[0]!r} is started by {before!r} already")
        config = {"gpus": self.gpus, "gpu_memory": self.memory, "lease": self.lease}
        provisioner = {
            "provisioner_name": PROVISIONER,
            "config": {key: text for key, text in config.items() if text},
        }
        copied = spec.metadata.get(_OURS, {}).get("copied", spec.resource_dir)
        title = spec.display_name if name == arguments[0] else f"{spec.display_name} · shared GPU"
        made = {
            **spec.to_dict(),
            "display_name": title,
            "metadata": {**spec.metadata, _NAMES: provisioner, _OURS: {"copied": copied}},
        }
        where = self._place(spec.resource_dir, name != arguments[0]) / name
        if where != Path(spec.resource_dir):
            try:
                shutil.copytree(spec.resource_dir, where)
            except FileExistsError:
                raise Refused(f"there is a kernel in {where} already") from None
        (where / "kernel.json").write_text(json.dumps(made, indent=1), encoding="utf-8")
        return self.say(
            {"kernelspec": str(where), "display_name": title},
            f"{title!r} starts under a lease from now on. Its kernelspec is {where}.",
        )

    def _place(self, found: str, has_new_name: bool) -> Path:
        """The first folder of kernels where we may write, and that is looked at in time."""
        folders = [Path(folder) for folder in self.manager.kernel_dirs]
        if not has_new_name and (own := Path(found).parent) in folders:
            folders = folders[: folders.index(own) + 1]
        for folder in folders:
            there = next(one for one in (folder, *folder.parents) if one.exists())
            if os.access(there, os.W_OK):
                return folder
        looked = ", ".join(map(str, folders))
        raise Refused(f"you may not write to {looked}; --as NAME makes a kernel of your own")


class UnwrapApp(_OfOne):
    """Start a kernel as before."""

    name = "kernelspec unwrap"
    description = """Start a kernel as before: the copy that `wrap` has made goes."""
    examples = "jupyter gpushare kernelspec unwrap ir"

    def run(self, arguments: list[str]) -> int:
        spec = self.spec(arguments)
        if (copied := spec.metadata.get(_OURS, {}).get("copied")) is None:
            raise Refused(f"{spec.resource_dir} was not made by `jupyter gpushare kernelspec wrap`")
        if Path(copied).resolve() != Path(spec.resource_dir).resolve():
            shutil.rmtree(spec.resource_dir)
            text = f"{spec.resource_dir} is gone."
        else:  # it took the place of the one that it is a copy of
            made = spec.to_dict()
            made["metadata"] = {
                name: held for name, held in spec.metadata.items() if name not in (_NAMES, _OURS)
            }
            file = Path(spec.resource_dir, "kernel.json")
            file.write_text(json.dumps(made, indent=1), encoding="utf-8")
            text = f"{file} is as before."
        return self.say({"kernelspec": spec.resource_dir}, text)
