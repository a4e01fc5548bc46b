"""The programs that the four people of ``make demo-turns`` run: notebook cells, and a script.

Each program writes down when its steps computed, in the file that ``DEMO_STEPS`` names: a line for
each step, with its begin and its end in monotonic seconds.
"""

from __future__ import annotations

#: The first cell of everybody's notebook: a training loop.
LOOP = """
import json, os, time, torch
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
log = open(os.environ["DEMO_STEPS"], "a", buffering=1)

def train(seed, enough):
    torch.manual_seed(seed)
    data = TensorDataset(torch.randn(2048, 256), torch.randint(10, (2048,)))
    net = torch.nn.Sequential(
        torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Dropout(0.2),
        torch.nn.Linear(1024, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 10),
    )
    optimizer = torch.optim.AdamW(net.parameters())
    losses, began = [], [0.0]
    net.register_forward_pre_hook(lambda *_: began.__setitem__(0, time.monotonic()))
    optimizer.register_step_post_hook(lambda *_: log.write(f"{began[0]} {time.monotonic()}\\n"))
    while True:
        for inputs, labels in DataLoader(data, batch_size=512, shuffle=True):
            if enough(losses):
                weights = sum(one.double().sum().item() for one in net.parameters())
                return print(json.dumps([one.hex() for one in (*losses, weights)]))
            loss = torch.nn.functional.cross_entropy(net(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
"""
#: The cells that use it: with a seed, until that file is there, or for so many steps.
UNTIL_THERE = "train({}, lambda losses: os.path.exists({!r}))"
BY_STEPS = "train({}, lambda losses: len(losses) >= {})"

#: Dan's ``train.py``. It says how its state is saved, and goes on from there when it is started
#: again. At the end it prints what it computed, each part as a digest of all its bytes.
SCRIPT = """
import hashlib, json, os, sys, time
import torch
import jupyter_gpushare as gpushare

steps = int(sys.argv[1])
torch.set_num_threads(1)
torch.manual_seed(4)
inputs, labels = torch.randn(2048, 256), torch.randint(10, (2048,))
net = torch.nn.Sequential(
    torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(256, 10)
)
optimizer = torch.optim.AdamW(net.parameters())
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.97)
parts = {"weights": net, "optimizer": optimizer, "scheduler": scheduler}
step, losses = 0, []
if os.path.exists("last.pt"):  # it was stopped before
    saved = torch.load("last.pt")
    for name, part in parts.items():
        part.load_state_dict(saved[name])
    torch.set_rng_state(saved["random state"])
    step, losses = saved["steps"], saved["losses"]
    print("goes on after step", step, flush=True)

def state():
    told = {name: part.state_dict() for name, part in parts.items()}
    return {**told, "random state": torch.get_rng_state(), "steps": step, "losses": losses}

@gpushare.on_preempt
def save():
    torch.save(state(), "new.pt")
    os.replace("new.pt", "last.pt")
    print("saved after step", step, flush=True)

with open(os.environ["DEMO_STEPS"], "a", buffering=1) as log:
    while step < steps:
        began = time.monotonic()
        for _ in range(16):  # micro-batches
            rows = torch.randint(len(inputs), (256,))
            loss = torch.nn.functional.cross_entropy(net(inputs[rows]), labels[rows])
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        step += 1
        losses.append(loss.item())
        log.write(f"{began} {time.monotonic()}\\n")
        gpushare.checkpoint()  # here it may be stopped

def digest(part):
    found = hashlib.sha256()
    def add(one):
        if isinstance(one, torch.Tensor):
            found.update(bytes(one.flatten().view(torch.uint8).tolist()))
        elif isinstance(one, dict):
            for name in one:
                add(name), add(one[name])
        elif isinstance(one, (list, tuple)):
            for each in one:
                add(each)
        else:
            found.update(repr(one).encode())
    add(part)
    return found.hexdigest()

print(json.dumps({name: digest(part) for name, part in state().items()}))
"""
