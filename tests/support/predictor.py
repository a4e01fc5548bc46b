"""A predictor with known answers, for a node manager's process: its ``config`` plants it there."""

from __future__ import annotations

#: A step takes half a second, twice as much at most; the tensors' peak, or a fifth more, is enough.
PLANT = """
from jupyter_gpushare.predict import estimates as _words

class _Fixed:
    @classmethod
    def load(cls, path=None):
        return cls()

    def predict(self, features, kinds):
        return tuple(
            _words.Estimates(
                kind.name, 50, features.peak, features.peak * 6 // 5,
                features.iterations * 0.5, features.iterations * 1.0, 0.2,
                _words.Basis.PREDICTED,
            )
            for kind in kinds
        )

from jupyter_gpushare.node.wire import predictions as _asked
_asked.Predictor = _Fixed
"""
