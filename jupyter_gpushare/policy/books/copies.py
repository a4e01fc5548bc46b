"""A changed copy of frozen data: ``replace`` of dataclasses, without calling ``__init__``.

A state has some forty fields, and a grant makes a dozen of them. What is copied like this has no
slots: its fields are one dictionary, which is copied at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import replace as replace
else:
    import dataclasses

    def replace(thing: Any, /, **changes: Any) -> Any:
        """The same as of dataclasses; what has slots is copied as there."""
        fields = getattr(thing, "__dict__", None)
        if fields is None or not changes.keys() <= fields.keys():
            return dataclasses.replace(thing, **changes)
        copy = object.__new__(type(thing))
        copy.__dict__.update(fields, **changes)
        return copy
