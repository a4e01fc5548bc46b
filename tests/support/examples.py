"""How many random examples a test tries: a part in `make test`, all of them in `make test-long`."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, Phase, settings


def is_searching() -> bool:
    """Whether there is time to look at everything, as in `make test-long`."""
    return settings.get_current_profile_name() == "searching"


def examples(most: int) -> int:
    """``most`` where the profile ``searching`` is chosen, else two fifths of them.

    Without it the examples are the same in each run: many more of them find nothing new.
    """
    return most if is_searching() else max(1, most * 2 // 5)


def until_it_fails(most: int, **more: Any) -> settings:
    """For a test that must fail, as a bug is planted: the first failure is enough, however long."""
    return settings(
        max_examples=most,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        **more,
    )
