"""What this process asks for and how it behaves, from all who may say."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...protocol.notebook import Notebook
from ..words.settings import Ask, Settings, read_settings
from .notebook import ask_server
from .task import SESSION_NAME


class Preferences:
    """The wishes of one process.

    ``traits`` gives the weakest settings, anew each time; ``None``: the defaults.
    """

    def __init__(
        self,
        environ: Mapping[str, str],
        traits: Callable[[], Settings | None],
        say: Callable[[str], None],
    ) -> None:
        self._environ = environ
        self._traits = traits
        self._say = say
        self._said: set[str] = set()
        self._asked = Ask()
        self._notebook: Notebook | None = None  # as its server told it last
        #: The settings as they were read last: a request keeps to those that it was made with.
        self.last = Settings()

    @property
    def settings(self) -> Settings:
        """The settings in force; a value that cannot be used is complained of once."""
        self.last = read_settings(self._environ, self._traits(), self._notebook)
        for complaint in self.last.complaints:
            self.say_once(complaint)
        return self.last

    def ask(self, own: Ask | None = None) -> Ask:
        """What a request asks that names ``own``; ``None``: the process asks by itself.

        A notebook's are those that are saved now: its Jupyter server is asked.
        """
        # A server that is busy, or gone, does not take back what it said before.
        self._notebook = ask_server(self._environ) or self._notebook
        return self.ask_as_known() if own is None else own.over(self.settings.ask)

    def ask_as_known(self) -> Ask:
        """What this process asks by itself; the server is not asked: what is known is enough."""
        return self._asked.over(self.settings.ask)

    def set_ask(self, ask: Ask) -> None:
        """Set what this process asks by itself from now on; it is stronger than any setting."""
        self._asked = ask

    @property
    def are_remembered(self) -> bool:
        """Whether a person's request said what this process asks by itself."""
        return self._asked != Ask()

    @property
    def go_without(self) -> bool:
        """Whether a person said that this process goes on without a GPU."""
        return self._asked.gpus == 0

    def repeated(self, ask: Ask) -> Ask:
        """A person's request; one without any option asks the same as the last one."""
        return self._asked if ask == Ask() and not self.go_without else ask

    def told_environ(self) -> Mapping[str, str]:
        """The environment, with the notebook's name of now: the one at the start may be old."""
        path = None if self._notebook is None else self._notebook.path
        return self._environ if path is None else {**self._environ, SESSION_NAME: path}

    def say_once(self, text: str) -> None:
        """Say this, unless it was said before."""
        if text not in self._said:
            self._said.add(text)
            self._say(text)

    def inherit(self, parent: Preferences) -> None:
        """After a fork, in the child: what its parent asked, knew and was told."""
        self._asked, self._said = parent._asked, parent._said
        self._notebook = parent._notebook
