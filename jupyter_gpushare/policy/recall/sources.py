"""All that tasks could give: the offers of every source, the cheapest first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from ..books.state import State
from ..words.config import PolicyConfig
from ..words.recalls import Give
from . import growing, moving, offers, reclaiming, stopping
from .offers import Offer

SOURCES: Final[tuple[Callable[[State, PolicyConfig], Iterator[Offer]], ...]] = (
    offers.caches,
    offers.idle,
    growing.neighbours,
    moving.moved,
    moving.served,
    stopping.stopped,
    stopping.promised,
    reclaiming.reclaimed,
)
_PRICE: Final = {give: price for price, give in enumerate(Give)}


def all_offers(state: State, config: PolicyConfig) -> list[Offer]:
    """All offers, the cheapest kind first; offers of one kind come in their order."""
    found = [offer for source in SOURCES for offer in source(state, config)]
    return sorted(found, key=lambda offer: (_PRICE[offer.give], offer.order))
