"""For all rooms: tests can be interrupted wherever they run, and may be slow."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from inspect import iscoroutinefunction, signature
from itertools import chain, groupby, islice
from pathlib import Path

import pytest
from hypothesis import settings
from support import ownhost, warm
from support.bare import MISSING, is_of_a_verb, names_one_of
from support.changed import changed, is_told
from support.costs import SLOW, Costs
from support.workers import Workers

# How long an example takes depends on the machine, and is no property of the code.
# The same examples at each run, so that what fails fails again; `make test-long` searches on.
settings.register_profile("house", deadline=None, derandomize=True)
settings.register_profile("searching", deadline=None)
settings.load_profile("house")

# On some processors the last bit of a sum depends on where in memory the numbers lie, and tests
# compare bits. It is read when the first number is computed, here and in all that is started.
os.environ.setdefault("MKL_CBWR", "COMPATIBLE")

#: Folders whose tests mostly wait, for real servers, kernels and hosts.
WAITING = ("demo", "e2e", "hub", "faults", "slurm")
#: Short files that compute are left for the end, where they keep all processors busy.
END = ("packaging", "replay", "policy", "docs", "protocol", "boot")
ORDER = {name: at for at, name in enumerate((*WAITING, "", *END))}
#: So many files that compute follow one that waits. If all workers waited at once, the processors
#: would idle; if the waiting ones came last, they would run alone at the end.
COMPUTING = 5


def room_of(path: Path) -> str:
    """The folder of a test, below this one; nothing for this one itself and what is elsewhere."""
    here = Path(__file__).parent
    return (path.relative_to(here).parts or ("",))[0] if path.is_relative_to(here) else ""


def mixed(items: list[pytest.Item]) -> Iterator[pytest.Item]:
    """File by file: one that waits, then :data:`COMPUTING` that compute."""
    files = [[*of] for _path, of in groupby(items, lambda item: item.path)]
    waiting = [of for of in files if room_of(of[0].path) in WAITING]
    computing = iter([of for of in files if room_of(of[0].path) not in WAITING])
    for of in waiting:
        yield from chain(of, *islice(computing, COMPUTING))
    yield from chain(*computing)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """What tests satellites is left out of a tree that has no folders of theirs."""
    if not MISSING or collection_path.suffix != ".py":
        return None
    return room_of(collection_path) in MISSING or names_one_of(collection_path, MISSING) or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the files in an order that keeps all processors busy to the end, and mark the stories.

    A `story` is a `long` test, unless its room has changed or somebody names its folder.
    """
    items[:] = [item for item in items if not is_of_a_verb(item.name, MISSING)]
    items.sort(key=lambda item: ORDER.get(room_of(item.path), ORDER[""]))  # files stay together
    items[:] = mixed(items)
    slow = {*SLOW.read_text("utf-8").splitlines()}
    for item in items:
        names = {item.nodeid.split("[")[0], item.nodeid.split("::")[0]}
        if names & slow or item.get_closest_marker("story"):
            item.add_marker(pytest.mark.slow)
    named = {room_of(Path(word.split("::")[0]).absolute()) for word in config.args}
    marks = [(item, item.get_closest_marker("story")) for item in items]
    stories = [(room_of(item.path), item, mark.args) for item, mark in marks if mark is not None]
    if any(room not in named for room, _, _ in stories):
        paths = changed()
        for room, item, of in stories:
            if room not in named and not is_told(room, of, paths):
                item.add_marker(pytest.mark.long)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine in a loop of its own, unless Jupyter's fixtures have one."""
    if not iscoroutinefunction(pyfuncitem.obj) or "jp_asyncio_loop" in pyfuncitem.fixturenames:
        return None
    given = {name: pyfuncitem.funcargs[name] for name in signature(pyfuncitem.obj).parameters}
    asyncio.run(pyfuncitem.obj(**given))
    return True


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--costs", type=Path, help="write here what each test costs, as JSON lines")
    parser.addoption("--workers", type=int, default=0, help="run the tests in so many processes")


def pytest_configure(config: pytest.Config) -> None:
    _leave_the_host(config)
    starts = warm.install()

    @contextmanager
    def own() -> Iterator[None]:
        """What each process of tests has for itself."""
        # A node manager of whoever runs the tests, say of `make lab`, would give pytest a GPU.
        with tempfile.TemporaryDirectory(prefix="gpushare-") as runtime:
            os.environ["JUPYTER_RUNTIME_DIR"] = runtime
            yield
            if starts is not None:
                starts.close()

    ends = ExitStack()
    ends.enter_context(own())
    config.add_cleanup(ends.close)
    config.pluginmanager.register(Costs(config.getoption("--costs")), "costs")
    if count := config.getoption("--workers"):
        config.pluginmanager.register(Workers(count, own), "workers")
    # A shell starts its background jobs with SIGINT ignored, and children would inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave_the_host(config: pytest.Config) -> None:
    folder = tempfile.TemporaryDirectory(prefix="gpushare-own-")
    config.add_cleanup(folder.cleanup)
    try:
        ownhost.own(Path(folder.name))
    except ownhost.NotOurs as error:
        raise pytest.UsageError(str(error)) from None
