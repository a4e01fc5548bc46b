"""A number in a configuration file or on the command line."""

from __future__ import annotations

import math
from typing import Any, Final

from traitlets import Float, TraitError

_REFUSAL: Final = "{where} = {value} cannot be used: write a finite number."


class Finite(Float[float, Any]):
    """A number with an end. No bound refuses NaN, for it compares with nothing."""

    info_text = "a finite number"

    def validate(self, obj: Any, value: Any) -> Any:
        number = super().validate(obj, value)
        if isinstance(number, float) and not math.isfinite(number):
            where = f"{type(obj).__name__}.{self.name}" if self.name else "the value"
            raise TraitError(_REFUSAL.format(where=where, value=number))
        return number
