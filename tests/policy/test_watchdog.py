"""The watchdog's stories, one by one, and what its people are told."""

from __future__ import annotations

import pytest
from support.policy_watchdog import WATCHDOG
from support.policy_world import plain_config

from jupyter_gpushare.policy.say.texts import over_limit_text
from jupyter_gpushare.policy.words.model import HolderAction

GIB = 2**30


@pytest.mark.parametrize("story", WATCHDOG, ids=lambda story: story.__name__)
def test_story(story):
    story()


def test_the_warning_says_how_much_and_what_comes():
    said = over_limit_text(2, 12 * GIB, 8 * GIB, plain_config())
    assert "uses 12 GiB of GPU 2, 4 GiB more than its limit of 8 GiB" in said
    assert "emptied in 10 seconds" in said
    assert "after 30 seconds its GPU is taken back if it is idle" in said
    assert "killed" not in said
    kills = plain_config(audit_action=HolderAction.KILL)
    assert "After 2 minutes it is killed." in over_limit_text(0, 2 * GIB, GIB, kills)
