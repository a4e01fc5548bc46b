"""A changed copy of frozen data: ``replace`` of dataclasses, without calling ``__init__``.

A grant makes a dozen states of some forty fields each, and ``__init__`` would set each field by
itself. A class without slots keeps its fields in one dictionary, and this copies that as a whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import replace as replace
else:
    import dataclasses

    def replace(thing: Any, /, **changes: Any) -> Any:
        """As ``dataclasses.replace``, which is called for a class with slots."""
        fields = getattr(thing, "__dict__", None)
        if fields is None or not changes.keys() <= fields.keys():
            return dataclasses.replace(thing, **changes)
        copy = object.__new__(type(thing))
        copy.__dict__.update(fields, **changes)
        return copy
