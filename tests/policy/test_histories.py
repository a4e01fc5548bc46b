"""No GPU is booked twice, no lease lost, nothing leaked and nobody starved, whatever happens.

Random histories of a small physical world.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from support.examples import examples
from support.policy_histories import Crowd, Following, Histories

# Long on a busy machine, and never hanging: each step is a pure function.
pytestmark = pytest.mark.timeout(900)

TestHistories = Histories.TestCase
TestHistories.settings = settings(
    max_examples=examples(500),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)

TestCrowd = Crowd.TestCase
TestCrowd.settings = settings(max_examples=examples(150), stateful_step_count=60, deadline=None)

# Reservations that follow what is measured, beside those that do not.
TestFollowing = Following.TestCase
TestFollowing.settings = settings(
    max_examples=examples(100),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
