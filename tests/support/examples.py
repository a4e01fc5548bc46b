"""How many random examples a test tries: a part in `make test`, all of them in `make test-long`."""

from __future__ import annotations

from hypothesis import settings


def examples(most: int) -> int:
    """``most`` where the profile ``searching`` is chosen, else two fifths of them.

    Without it the examples are the same in each run: many more of them find nothing new.
    """
    searches = settings.get_current_profile_name() == "searching"
    return most if searches else max(1, most * 2 // 5)
