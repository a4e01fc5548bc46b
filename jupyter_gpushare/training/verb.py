"""``jupyter gpushare predictor retrain|card``: the models that say what a task will need."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

from ..cli.ledger import LedgerVerb, as_owner_of
from ..console.verb import Refused, UsageError, Verb, flag
from ..predict.card import card_text
from ..predict.estimates import Predictor, WrongModels
from ..predict.records import MODELS_FILE, RECORDS_FILE, Record, read_lines, shipped
from ..protocol.messages import Method
from ..protocol.privateplace import replace_private


class PredictorVerb(LedgerVerb):
    """A verb about the models beside a ledger."""

    def beside(self, name: str) -> Path:
        """A file beside the ledger that is meant."""
        node = self.node()
        if node is not None:
            with node:
                told = node.call(Method.STATUS)["node"].get("ledger")
            if told:
                return Path(told).with_name(name)
        return self.place().with_name(name)


class PredictorRetrainApp(PredictorVerb):
    """Train the models that predict memory, time and utilisation, with the runs that
    come with the package and those that this node has kept (NodeManagerApp.keep_runs), and put
    them beside the ledger, where the node manager reads them at the next prediction. It takes
    minutes and the extra [predict]: scikit-learn and torch."""

    name = "predictor retrain"
    examples = """
    jupyter gpushare predictor retrain
    """

    def work(self, arguments: list[str]) -> int:
        try:
            from .fit import train
        except ImportError as error:
            raise Refused(
                f"training needs {error.name}: pip install cloudpickle scikit-learn torch",
                "unavailable",
            ) from None
        own = self._own(self.beside(RECORDS_FILE))
        document = train([*shipped(), *own], f"runs of the package and {len(own)} of this node")
        place = self.beside(MODELS_FILE)
        place.parent.mkdir(parents=True, exist_ok=True)
        with as_owner_of(place):
            replace_private(place, json.dumps(document, separators=(",", ":")).encode())
        answer = {"file": str(place), "runs": len(own), "card": document["card"]}
        return self.say(
            answer, f"{card_text(document['card'])}\n{place}: made, with {len(own)} own runs"
        )

    def _own(self, place: Path) -> list[Record]:
        with as_owner_of(place):
            if not place.exists():
                return []
            with place.open(encoding="utf-8", errors="replace") as file:
                return list(read_lines(file))


class PredictorCardApp(PredictorVerb):
    """Print the card of the models in use: the errors on models that training had not
    seen, for memory, time and utilisation, beside those of simpler ways. The models are the ones
    beside the ledger, if they were retrained there, else those of the package."""

    name = "predictor card"

    shipped = flag("The card of the models that come with the package.")

    def work(self, arguments: list[str]) -> int:
        place = None if self.shipped else self.beside(MODELS_FILE)
        try:
            used = Predictor.load(place if place is not None and place.exists() else None)
        except WrongModels as error:
            raise Refused(str(error)) from None
        return self.say(dict(used.card), card_text(used.card))


class PredictorApp(Verb):
    """What a task will need is predicted by models; these verbs are about them."""

    name = "predictor"
    arguments = "VERB"
    subcommands: ClassVar[Any] = {
        "retrain": ("training.verb.PredictorRetrainApp", "Train them with this node's runs."),
        "card": ("training.verb.PredictorCardApp", "How wrong they are."),
    }

    def run(self, arguments: list[str]) -> int:
        raise UsageError("say what: jupyter gpushare predictor retrain, or card")
