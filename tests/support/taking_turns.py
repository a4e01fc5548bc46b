"""`Turns` without a node manager, over a session and a program that the test plays."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from jupyter_gpushare.client.memory.turns import Turns
from jupyter_gpushare.client.session.lease import OwnState


def program(**own: Any) -> Any:
    """One that may stop anywhere, and has nothing that a stop would change."""
    answers: dict[str, Any] = {
        **dict.fromkeys(("drop_caches", "trim", "watch", "cell_begins"), lambda: None),
        **dict.fromkeys(("look", "hindrance"), lambda: None),
        **dict.fromkeys(("next_step_fits", "may_stop"), lambda: True),
    }
    return SimpleNamespace(**{**answers, **own})


def turns_of(
    line: Any,
    grant: Any = None,
    *,
    program: Any = program(),  # noqa: B008 - it is not changed
    limited: Any = lambda _limits: None,
    own: Any = None,
    environ: Mapping[str, str] = {},
    **options: Any,
) -> Turns:
    """The turns of a process that has ``grant``; ``line`` has its ``session``."""
    return Turns(
        line,
        own or SimpleNamespace(grant=grant, state=OwnState.HELD),
        program,
        SimpleNamespace(in_turn=limited),  # type: ignore[arg-type]
        SimpleNamespace(while_waiting=lambda _place, _fits: False),  # type: ignore[arg-type]
        SimpleNamespace(waited=0.0),  # type: ignore[arg-type]
        environ,
        **options,
    )
