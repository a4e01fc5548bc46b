"""A tiny model behind LitServe: ``python -m support.litmodel PORT FILE``.

The FILE has its weights, which are random where there is none yet. The model is in a worker of
LitServe's; what is started is that worker's parent, and does not end it when it is ended itself.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import litserve


class Tiny(litserve.LitAPI):
    """It says what the model makes of four numbers, and which process that was."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.file = file

    def setup(self, device: str) -> None:
        import torch  # in the worker only: it takes seconds

        self.torch = torch
        torch.set_num_threads(1)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)
        )
        if self.file.exists():
            self.model.load_state_dict(torch.load(self.file, weights_only=True))
        else:
            torch.save(self.model.state_dict(), self.file)

    def predict(self, request: dict[str, Any]) -> dict[str, Any]:
        with self.torch.inference_mode():
            says = self.model(self.torch.tensor(request["input"], dtype=self.torch.float32))
        return {"output": says.tolist(), "pid": os.getpid()}


if __name__ == "__main__":
    litserve.LitServer(Tiny(Path(sys.argv[2])), accelerator="cpu").run(
        host="127.0.0.1", port=int(sys.argv[1]), generate_client_file=False
    )
