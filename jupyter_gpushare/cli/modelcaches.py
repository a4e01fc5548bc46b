"""The check of ``jupyter gpushare doctor`` for models of which several people keep a copy each.

Hugging Face and Ollama name a file in their caches by its hash, and torch hub puts one into the
name. So two of one name and size are the same file, and nothing need be read. Only names and sizes
are looked at, only where the caller may look, and only for some seconds; who has which model is
not told. Homes may be on a disk that does not answer, so this is done by a process of its own.
"""

from __future__ import annotations

import glob
import itertools
import json
import os
import pwd
import subprocess
import time
from collections.abc import Iterable
from typing import Any, Final

from ..console.check import Check, ok, warning
from ..figures import format_size
from .checks import told_by

#: Where files are in a home, if no variable says otherwise.
PLACES: Final = (
    ".cache/huggingface/hub/*/blobs/*",
    ".cache/torch/hub/checkpoints/*",
    ".ollama/models/blobs/*",
)
#: Seconds for which it looks.
WITHIN: Final = 5.0
#: Bytes on a disk that are worth a word.
WORTH: Final = 2**30
_NAME: Final = "model caches"


def model_caches() -> Check:
    """Whether one cache for all would save some of the disk."""
    try:
        return judge(told_by(["-P", "-m", __name__]))
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return ok(_NAME, "not looked at: the homes here do not answer in time")


def judge(seen: dict[str, Any]) -> Check:
    """What is to be said of what `look` saw."""
    rest = "" if seen["whole"] else f" Not all were looked at in {WITHIN:g} s."
    if seen["saved"] < WORTH:
        text = f"{seen['caches']} can be read from here; they share little or nothing.{rest}"
        return ok(_NAME, text)
    return warning(
        _NAME,
        f"{seen['files']} files of models are in the homes of several people. One cache for all"
        f" would need {format_size(seen['saved'])} less.{rest}",
        "docs/how-to/model-cache.md",
    )


def look(homes: Iterable[str], within: float = WITHIN) -> dict[str, Any]:
    """What several of these homes have, as far as it is seen ``within`` so many seconds."""
    copies: dict[tuple[str, int], dict[tuple[int, int], str]] = {}
    end, caches, whole = time.monotonic() + within, set(), True
    for home, place in itertools.product(homes, PLACES):
        if time.monotonic() >= end:
            whole = False
            break
        for path in glob.iglob(os.path.join(glob.escape(home), place)):
            try:
                file = os.stat(path)
            except OSError:
                continue  # it is gone, or its owner does not want us to look
            caches.add((home, place))
            same = copies.setdefault((os.path.basename(path), file.st_size), {})
            if home not in same.values():
                same[file.st_dev, file.st_ino] = home  # a link to another's needs no room
    several = {one: len(same) - 1 for one, same in copies.items() if len(same) > 1}
    saved = sum(size * more for (_, size), more in several.items())
    return {"caches": len(caches), "files": len(several), "saved": saved, "whole": whole}


def homes() -> list[str]:
    """The homes of this host; a directory service need not list all users."""
    return sorted({one.pw_dir for one in pwd.getpwall()} | set(glob.glob("/home/*")))


if __name__ == "__main__":
    print(json.dumps(look(homes())))
