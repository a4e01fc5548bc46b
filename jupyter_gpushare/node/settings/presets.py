"""Defaults for a lesson, for a lab and for one's own machine: a dozen settings chosen at once.

About ten settings decide how a shared host feels, and their best values depend on who shares it. A
preset has a value for each of them. It goes below the configuration: what the configuration says
itself overrides it, setting by setting. The table here is the only place that has the values; the
configuration page is made from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from traitlets.config import Config

from ...protocol import documents as doc

#: The presets and whom they are for.
PRESETS: Final = {
    "class": "A lesson: many people at the same time, with models that are small beside a GPU.",
    "lab": "A lab: a few people who need whole GPUs, for hours, and leave jobs running at night.",
    "own": "A machine of one person, with several notebooks and programs.",
}


@dataclass(frozen=True, slots=True)
class Chosen:
    """A setting, its value in each of :data:`PRESETS` as people write it, and why these."""

    name: str
    values: tuple[Any, Any, Any]
    why: str

    @property
    def place(self) -> tuple[str, str]:
        """The section of the configuration, and the trait in it."""
        section, _, trait = self.name.partition(".")
        return section, trait


CHOSEN: Final = (
    Chosen(
        "Quotas.default",
        ({"gpus": 1, "memory": 0.25}, {"gpus": 2, "interactive": 1}, {"gpus": "all"}),
        "In a lesson four people begin on each GPU. In a lab everybody has a whole GPU to work on, "
        "and a second one for batch jobs.",
    ),
    Chosen(
        "Policy.share_mode",
        ("time", "space", "time"),
        "Where several tasks are on a GPU, short cells go before long trainings.",
    ),
    Chosen(
        "Policy.reserve",
        ("quota", "whole", "quota"),
        "What a task was measured not to need is free for others. A whole GPU stays one person's.",
    ),
    Chosen(
        "Policy.max_tasks_per_gpu",
        (8, None, None),
        "When measurements show that there is room, a lesson has eight people on a GPU, not four.",
    ),
    Chosen(
        "Policy.quantum",
        (5, 10, 5),
        "The cells of a lesson are short, so one that computes for 5 seconds lets others go on.",
    ),
    Chosen(
        "Policy.idle_timeout",
        (300, 900, 60),
        "Long enough to read an exercise, or to look at a result. On a machine of one person the "
        "one who waits for the idle notebook's GPU is its owner.",
    ),
    Chosen(
        "Policy.notify_before",
        (30, 60, 30),
        "Who reads in another window needs a minute to notice the countdown.",
    ),
    Chosen(
        "Policy.keep_for",
        (300, 1800, 3600),
        "In a lesson the others wait for what somebody keeps.",
    ),
    Chosen(
        "Policy.pin_limit",
        (900, 14400, 86400),
        "A quarter of an hour, half a working day, a day.",
    ),
    Chosen(
        "Policy.stop_after",
        (60, 300, 60),
        "A batch job that can save its state makes way for a person, sooner where people wait "
        "together.",
    ),
    Chosen(
        "Policy.stalled_interrupt",
        (600, 1800, 1800),
        "A lesson is over before half an hour without progress has passed.",
    ),
    Chosen(
        "Policy.promise_share",
        (25, 50, 80),
        "A deadline claims no more of a GPU's time than a quota gives of its memory; on a machine "
        "of one person it claims from nobody else.",
    ),
)


def config_of(preset: str) -> Config:
    """The settings of a preset as a configuration."""
    index, config = list(PRESETS).index(preset), Config()
    for one in CHOSEN:
        section, trait = one.place
        config[section][trait] = one.values[index]
    return config


def told_of(preset: str, config: Config) -> doc.Preset:
    """What people see of the preset, beside a configuration that may say otherwise."""
    chosen = config_of(preset)
    otherwise = [
        one.name
        for one in CHOSEN
        for section, trait in (one.place,)
        if trait in config[section] and config[section][trait] != chosen[section][trait]
    ]
    text = f"{preset}, but the configuration sets {', '.join(otherwise)}" if otherwise else preset
    return {"name": preset, "overridden": otherwise, "text": text}
