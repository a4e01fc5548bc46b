"""Run each line of README's tour as it stands there, in one kernel and one shell.

``make tour`` runs it. What the tour takes for granted is made before: a model and a batch, a
``train.py``, a CUDA tool. The GPUs are simulated, and everything else is real. It exits with 1 if a
line fails, or does not say what a reader of the README expects of it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from demo import Notebook, Story, nobody_died, start_node, told

README = Path(__file__).resolve().parent.parent / "README.md"
_FENCES = re.compile(r"```(\w+)\n(.*?)\n```", re.DOTALL)
_PROSE = re.compile(r"In Python, after `([^`]*)`: `(with lease[^`]*)\.\.\.`, or `(@gpu[^`]*)`")
PATIENCE = 300.0  # seconds for one line: a machine may be busy

CONFIG = """
c.Policy.stop_after = 1.0
c.Policy.share_mode = "time"
c.Quotas.default = {"gpus": 2}
"""
#: In the kernel before the lines that need it. In a new environment torch's files are compiled when
#: they are first imported, which takes a dry run's minute on a busy machine.
BEFORE = """import jupyter_gpushare.predict.dryrun.torchtrace
model, batch = torch.nn.Linear(32, 8), torch.randn(16, 32)"""
#: What a line must have said, by its beginning. Others must only not fail.
SAYS = {
    "%gpushare status": "quota",
    "%gpushare request": "GPU 0",
    "%gpushare release": "Given back",
    "%gpushare predict": "GiB",
    "%%gpushare --deadline": "512",
    "python train.py": "trained",
    "jupyter gpushare run": "the tool has GPU-",
    "jupyter gpushare sweep": "done",
    "jupyter gpushare elastic": "done",
    "jupyter gpushare status": "GPU",
    "with lease": "two",
    "@gpu": "one",
}
#: The lines below a line that has some.
BELOW = {
    "%%gpushare --deadline": "for _ in range(3):\n    x = torch.randn(8, 8)\nprint(512)",
    "with lease": (
        "    import os\n    assert len(os.environ['CUDA_VISIBLE_DEVICES'].split(',')) == 2\n"
        "    print('two')"
    ),
    "@gpu": "def work():\n    return 'one'\nprint(work())",
}
#: What a verb needs besides: a lease that there is not, or an administrator.
MORE = {"release": "release --help"}
ADMINS = "jupyter gpushare quota"
TRAIN = """
import torch
from jupyter_gpushare import elastic

def train(lr=1e-3):
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for _ in range(3):
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()
    return {"loss": lr}

if __name__ == "__main__":
    train()
    print("trained")
"""
TOOL = '#!/bin/sh\necho "the tool has $CUDA_VISIBLE_DEVICES"\n'


def begins(table: dict[str, str], line: str) -> str:
    """What a table has for a line."""
    return next((said for begin, said in table.items() if line.startswith(begin)), "")


def cells(text: str) -> list[str]:
    """The tour's cells: each line of Python, with what a reader writes below it."""
    lines = next(code for kind, code in _FENCES.findall(text) if kind == "python").splitlines()
    prose = _PROSE.search(text)
    assert prose is not None, "README's sentence of lease and gpu is written otherwise now"
    lines += prose.groups()
    return ["\n".join(filter(None, (line, begins(BELOW, line)))) for line in lines]


def commands(text: str) -> list[str]:
    """The tour's commands, and the verbs that its last line names in its comment."""
    lines = [code for kind, code in _FENCES.findall(text) if kind == "bash"][-1].splitlines()
    verbs = re.findall(r"\w+", lines[-1].partition("# and ")[2])
    return [*lines, *(f"jupyter gpushare {MORE.get(verb, verb)}" for verb in verbs)]


def the_tour() -> str:
    """README's section of that name."""
    return README.read_text("utf-8").partition("\n## The tour")[2].partition("\n## ")[0]


def runs(folder: Path, line: str, environ: dict[str, str]) -> tuple[int, str]:
    """A command's exit status, and all that it printed. What asks for input gets its end."""
    done = subprocess.run(
        ["bash", "-c", line],
        cwd=folder,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    return done.returncode, done.stdout


def play(story: Story, stack: ExitStack, folder: Path) -> None:
    """All lines, in their order."""
    socket = start_node(stack, folder, CONFIG, ("alice",), "--simulate", "2x24GiB")
    own = {
        "JUPYTER_GPUSHARE_SOCKET": socket,
        "JUPYTER_GPUSHARE_TOKEN": "alice-token",
        "JUPYTER_DATA_DIR": str(folder / "data"),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    notebook = Notebook(story, "alice", "tour", socket, own)
    stack.callback(notebook.close)
    for cell in cells(the_tour()):
        if "predict" in cell:
            notebook.run(BEFORE)
            notebook.result(PATIENCE)
        notebook.run(cell)
        first = cell.partition("\n")[0]
        said = notebook.result(PATIENCE) + notebook.shown
        well = begins(SAYS, cell) in said
        story.check(well, first if well else f"{first}\n{said}")
    notebook.close()
    (folder / "train.py").write_text(TRAIN)
    (folder / "my_cuda_tool").write_text(TOOL)
    (folder / "my_cuda_tool").chmod(0o755)
    for line in commands(the_tour()):
        token = {"JUPYTER_GPUSHARE_TOKEN": "admin-token"} if line == ADMINS else {}
        code, said = runs(folder, line, {**os.environ, **own, **token})
        nobody_died()
        shown = line if code == 0 else f"{line}: exit code {code}\n{said}"
        story.check(code == 0 and begins(SAYS, line) in said, shown)


if __name__ == "__main__":
    sys.exit(told(play, "The tour does what README says."))
