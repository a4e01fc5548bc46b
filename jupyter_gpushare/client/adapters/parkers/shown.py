"""Prints a parked tensor safely: by its shape.

Front ends print variables while no cell runs (tooltips, a variable table), and for a parked tensor
torch would read memory that is not there.
"""

from __future__ import annotations

from typing import Any

from .walk import parts


class ParkedPrinting:
    """Between `begin` and `end`, tensors whose storage is one of ``storages`` print safely."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._original: Any = None
        self._ours: Any = None

    def begin(self, storages: frozenset[int]) -> None:
        """``storages``: their ``_cdata``. Calling it twice changes nothing."""
        if self._ours is not None:
            return
        torch, module = self._torch, self._torch._tensor_str
        base = torch._C.TensorBase
        original = self._original = module._str

        def _str(tensor: Any, *arguments: Any, **named: Any) -> str:
            if _is_parked(torch, tensor, storages):
                shape = tuple(base.size(tensor))
                kind = str(base.dtype.__get__(tensor)).removeprefix("torch.")
                return f"tensor(<parked>, shape={shape}, dtype={kind})"
            return str(original(tensor, *arguments, **named))

        self._ours = module._str = _str

    def end(self) -> None:
        """Print as torch does."""
        if self._ours is not None and self._torch._tensor_str._str is self._ours:
            self._torch._tensor_str._str = self._original
        self._ours = self._original = None


def _is_parked(torch: Any, tensor: Any, storages: frozenset[int]) -> bool:
    with torch._C.DisableTorchFunctionSubclass():
        try:
            return any(
                torch._C.TensorBase.untyped_storage(part)._cdata in storages
                for part in (tuple(parts(torch, tensor)) or (tensor,))
            )
        except (RuntimeError, NotImplementedError):
            return False  # it has no storage that could be parked
