"""The two programs of ``make demo-qos``: real training loops, each on a share of one simulated GPU.

Each step trains a small net on the CPU. What a GPU would compute of it is slept: another task could
use the GPU meanwhile. A line for each step tells when it began and ended, in monotonic seconds.
"""

from __future__ import annotations

#: The node manager counts what a program does with its lease before its first step as computed, and
#: gives longer turns to those who computed for long. So torch is loaded on another lease.
_STEP = """
import os, time
from jupyter_gpushare import steps
from jupyter_gpushare.client import lease, release, request
request(memory="8GiB", priority_class="interactive")
import torch
torch.set_num_threads(1)
torch.manual_seed(1)
model = torch.nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

def computes():
    model(torch.ones(8, 16)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()

def train(seconds):
    began = time.monotonic()
    computes()
    time.sleep(seconds)  # the GPU computes
    print("step", began, time.monotonic(), flush=True)

computes()
release()
request(memory="8GiB", priority_class="interactive")
"""

#: Bob's and Carol's: short rounds, one after the other, until it is ended. Whoever has less left
#: goes first, so they would always go before Alice, if she had no share of her own.
ENDLESS = f"""
{_STEP}
while True:
    for _ in steps(range(20)):
        train({{quick}})
"""

#: Alice's: once that file is there, so many steps by a deadline; from the middle on each is longer.
SENSITIVE = f"""
{_STEP}
for _ in steps(iter(int, 1)):  # as the others do: she has had as much as they
    train({{quick}})
    if os.path.exists({{go!r}}):
        break
began = time.monotonic()
with lease(deadline={{deadline}}):
    print("began", began, flush=True)
    for number in steps(range({{steps}})):
        train({{quick}} if number < {{slows}} else {{slow}})
print("ready", time.monotonic(), flush=True)
"""
