"""``jupyter gpushare kernelspec``: any kernel of this host under a lease, and back."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any, Final

from ..console.verb import Refused, UsageError, Verb, option
from ..protocol.sizes import parse_gpus, parse_memory

_OURS: Final = "gpushare"  # where we note what we made, in a kernelspec's metadata
_NAMES: Final = "kernel_provisioner"
_PLAIN: Final = "local-provisioner"
PROVISIONER: Final = "gpushare"


def _memory(text: str) -> str:
    parse_memory(text)
    return text


class KernelspecApp(Verb):
    """Put a kernel that has nothing of ours, in R, Julia, C++ or another Python,
    under a lease from its next start on (wrap), or take it out again (unwrap). The kernelspec is
    copied under the same name to where Jupyter finds it first and you may write; where it is there,
    it is changed."""

    name = "kernelspec"
    arguments = "wrap|unwrap NAME"
    examples = """
    jupyter gpushare kernelspec wrap ir
    jupyter gpushare kernelspec wrap julia-1.11 --gpus 2 --memory 24GiB
    jupyter gpushare kernelspec wrap xcpp17 --as xcpp17-gpu --lease first-cell
    jupyter gpushare kernelspec unwrap ir
    """

    as_name = option("", "The name of the new kernel. Default: the same.", name="as")
    gpus: int | str | None = option(
        None, "GPUs to ask for, where the notebook names none. Default: 1.", parse_gpus
    )
    memory = option("", "Memory on each, like 24GiB. Default: the quota's.", _memory)
    lease = option(
        "start",
        "When the lease is taken: at the kernel's start or at its first cell; that where the host "
        "has no more GPUs than it asks for. Default: start.",
        choices=("start", "first-cell"),
    )

    def run(self, arguments: list[str]) -> int:
        from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

        does = {"wrap": self._wrap, "unwrap": self._unwrap}
        if len(arguments) != 2 or arguments[0] not in does:
            raise UsageError("wrap or unwrap which kernel? jupyter gpushare kernelspec wrap ir")
        self._manager, name = KernelSpecManager(), arguments[1]
        try:
            spec = self._manager.get_kernel_spec(name)
        except NoSuchKernel:
            known = ", ".join(sorted(self._manager.find_kernel_specs())) or "none"
            raise Refused(f"there is no kernel {name!r}; there is: {known}") from None
        where, said = does[arguments[0]](spec, name)
        return self.say({"kernelspec": str(where)}, said)

    def _wrap(self, spec: Any, before: str) -> tuple[Path, str]:
        starts = spec.metadata.get(_NAMES, {}).get("provisioner_name", _PLAIN)
        if starts not in (_PLAIN, PROVISIONER):
            raise Refused(f"the kernel {before!r} is started by {starts!r} already")
        name = self.as_name or before
        gpus = "" if self.gpus is None else str(self.gpus)
        config = {"gpus": gpus, "gpu_memory": self.memory, "lease": self.lease}
        how = {
            "provisioner_name": PROVISIONER,
            "config": {key: text for key, text in config.items() if text},
        }
        copied = spec.metadata.get(_OURS, {}).get("copied", spec.resource_dir)
        where = self._place(spec.resource_dir, name != before) / name
        if where != Path(spec.resource_dir):
            try:
                shutil.copytree(spec.resource_dir, where)
            except FileExistsError:
                raise Refused(f"there is a kernel in {where} already") from None
        title = spec.display_name if name == before else f"{spec.display_name} · shared GPU"
        more = {_NAMES: how, _OURS: {"copied": copied}}
        _write(where, spec, title, {**spec.metadata, **more})
        return where, f"{title!r} starts under a lease from now on. Its kernelspec is {where}."

    def _unwrap(self, spec: Any, name: str) -> tuple[Path, str]:
        where = Path(spec.resource_dir)
        if (copied := spec.metadata.get(_OURS, {}).get("copied")) is None:
            raise Refused(f"{where} was not made by `jupyter gpushare kernelspec wrap`")
        if Path(copied) != where:
            shutil.rmtree(where)
            return where, f"{where} is gone."
        was = {key: held for key, held in spec.metadata.items() if key not in (_NAMES, _OURS)}
        _write(where, spec, spec.display_name, was)
        return where, f"{where} is as before."

    def _place(self, found: str, has_new_name: bool) -> Path:
        """The first folder of kernels where we may write, and that is looked at in time."""
        folders = [Path(folder) for folder in self._manager.kernel_dirs]
        if not has_new_name and (own := Path(found).parent) in folders:
            folders = folders[: folders.index(own) + 1]
        for folder in folders:
            there = next(one for one in (folder, *folder.parents) if one.exists())
            if os.access(there, os.W_OK):
                return folder
        looked = ", ".join(map(str, folders))
        raise Refused(f"you may not write to {looked}; --as NAME makes a kernel of your own")


def _write(where: Path, spec: Any, title: str, metadata: dict[str, Any]) -> None:
    made = {**spec.to_dict(), "display_name": title, "metadata": metadata}
    (where / "kernel.json").write_text(json.dumps(made, indent=1), encoding="utf-8")
