"""Stories with a known end, one by one."""

from __future__ import annotations

import pytest
from support.policy_stories import STORIES


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_story(story):
    story()
