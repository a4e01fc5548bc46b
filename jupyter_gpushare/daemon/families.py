"""How collectors tell Prometheus one figure, or one for each value of a label."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

#: What the names of all our metrics begin with.
PREFIX: Final = "jupyter_gpushare"


def gauge(name: str, text: str, value: float) -> Metric:
    """A gauge of one figure."""
    return GaugeMetricFamily(f"{PREFIX}_{name}", text, value=float(value))


def _by_label(
    kind: type[GaugeMetricFamily | CounterMetricFamily],
    name: str,
    text: str,
    label: str,
    values: Mapping[Any, float | None],
) -> Metric:
    family = kind(f"{PREFIX}_{name}", text, labels=[label])
    for word, value in values.items():
        if value is not None:
            family.add_metric([word], float(value))
    return family


#: By one label; what is not known (``None``) is left out, never shown as zero.
gauges: Final = partial(_by_label, GaugeMetricFamily)
counters: Final = partial(_by_label, CounterMetricFamily)
