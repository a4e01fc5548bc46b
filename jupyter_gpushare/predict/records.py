"""One measured run, as a line of JSON: the starter set and a node's own data have the same form."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from .features import Features, Hardware

VERSION: Final = 1
#: Beside the node's ledger: its opt-in data, and the models that were retrained with them.
RECORDS_FILE: Final = "predictor-records.jsonl"
MODELS_FILE: Final = "predictor-models.json"
#: The starter set: scripts/predictor_runs.py measured it.
STARTER: Final = Path(__file__).with_name("starter.jsonl.gz")


@dataclass(frozen=True, slots=True)
class Record:
    """What a model needed on one GPU. ``family`` groups models that are alike (a node's own data:
    the key of code and shapes): errors are told of families that training has not seen."""

    family: str
    features: Features
    hardware: Hardware
    seconds: float  # one iteration, the median of several, without the first ones
    memory: int  # bytes, the peak; 0: not measured
    utilisation: float  # hundredths, of that GPU's compute; 0: not measured
    name: str = ""

    def line(self) -> str:
        """One line of JSON, without its end."""
        document = {
            "version": VERSION,
            "family": self.family,
            "name": self.name,
            "features": self.features.document(),
            "hardware": asdict(self.hardware),
            "seconds": self.seconds,
            "memory": self.memory,
            "utilisation": self.utilisation,
        }
        return json.dumps(document, separators=(",", ":"))

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Record:
        """The record of a document. Raises `ValueError` where it is none."""
        try:
            if document["version"] != VERSION:
                raise ValueError(f"version {document['version']} of a record is not known")
            return cls(
                family=str(document["family"]),
                features=Features.read(document["features"]),
                hardware=Hardware(**document["hardware"]),
                seconds=float(document["seconds"]),
                memory=int(document["memory"]),
                utilisation=float(document["utilisation"]),
                name=str(document.get("name", "")),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"this is no record: {error!r}") from error


def read_lines(lines: Iterable[str]) -> Iterator[Record]:
    """The records of a file's lines; a line that is none is left out: another release wrote it."""
    for line in lines:
        try:
            yield Record.read(json.loads(line))
        except ValueError:
            continue


def shipped() -> list[Record]:
    """The starter set. Raises `OSError`."""
    with gzip.open(STARTER, "rt", encoding="utf-8") as file:
        return list(read_lines(file))
