"""What people of ``make demo-pool`` run: a sweep's model, a training that grows and shrinks.

What a GPU would compute is slept, so that two cores are enough for nine cards.
"""

from __future__ import annotations

#: Bob's ``model.py``: one model of his sweep, which learns the sine from powers of x.
MODEL = """
import time

SECONDS = 0.1  # a step's

def train(rate, depth):
    import numpy
    from jupyter_gpushare import sweep

    x = numpy.linspace(-1, 1, 64)
    powers = numpy.stack([x**n for n in range(depth)], 1)
    weights = numpy.zeros(depth)
    for step in range(100):
        errors = powers @ weights - numpy.sin(3 * x)
        weights -= rate * powers.T @ errors / len(x)
        time.sleep(SECONDS)  # the GPU computes
        sweep.report(loss=float((errors**2).mean()), step=step)
    return {"loss": float((errors**2).mean())}
"""

#: Carol's ``train.py``. It trains until that file is there. Each rank looks for it at another
#: moment, so they agree by a sum.
TRAINING = """
import os, time
import torch
from torch import distributed
from jupyter_gpushare import elastic

torch.set_num_threads(1)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
net = elastic.keep(model, optimizer)
x = torch.randn(240, 8, generator=torch.Generator().manual_seed(1))
data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
for a, b in elastic.batches(data, batch=24, epochs=100_000):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(net(a), b)
    loss.backward()
    optimizer.step()
    time.sleep(0.1)  # the GPU computes
    elastic.report(loss=loss)
    enough = torch.tensor(float(os.path.exists(os.environ["DEMO_ENOUGH"])))
    if distributed.is_initialized():
        distributed.all_reduce(enough)
    if enough:
        break
"""
