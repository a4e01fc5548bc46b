"""A lease has the name that its notebook has now; nobody renames what is another's."""

from __future__ import annotations

from support.policy_world import World, gpu

from jupyter_gpushare.policy.core import Done
from jupyter_gpushare.policy.words import commands as cmd
from jupyter_gpushare.policy.words.model import Quota, Request

ALICE, BOB = "alice", "bob"


def test_only_ones_own_kernel_is_renamed_and_only_if_that_changes_something() -> None:
    world = World()
    world.start([gpu(0)], Quota(1, None))
    world.request("alice", 1, Request(request_id="cell"), kernel_id="k")
    for who, kernel, renamed in ((BOB, "k", 0), (ALICE, "k2", 0), (ALICE, "k", 1), (ALICE, "k", 0)):
        answer = world.run(cmd.RenameTask(world.at, who, kernel, "new.ipynb", "/home/new.ipynb"))
        assert answer == Done(count=renamed)
    task = world.state.leases["L1"].task
    assert (task.name, task.path, task.kernel_id) == ("new.ipynb", "/home/new.ipynb", "k")
