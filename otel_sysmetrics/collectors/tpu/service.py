"""What the metric service of a TPU runtime is asked on one port."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Final

from otel_sysmetrics.collectors.tpu import wire
from otel_sysmetrics.collectors.tpu.http2 import Connection

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_PATH: Final = "/tpu.monitoring.runtime.RuntimeMetricService/"


def ask(port: int, names: Collection[str], seconds: float) -> Mapping[str, Mapping[int, float]]:
    """Return the metrics of these names that are served on a port, each by device.

    A metric that the service does not know, or answers with nonsense, costs itself; a connection that breaks, or takes
    longer than `seconds`, costs what was not read before.
    """
    found: dict[str, Mapping[int, float]] = {}
    try:
        with closing(Connection(port, seconds)) as connection:
            for name in _known(connection, names):
                found[name] = _values(connection, name)
    except OSError:
        pass  # no workload runs there, which is how most machines are most of the time
    return found


def _known(connection: Connection, names: Collection[str]) -> Collection[str]:
    """Return those names that the service lists, all where it lists none: an old one cannot."""
    answer = connection.call(_PATH + "ListSupportedMetrics", b"")
    try:
        listed = wire.supported(answer or b"")
    except wire.Malformed:
        return names
    return [name for name in names if name in listed] if listed else names


def _values(connection: Connection, name: str) -> Mapping[int, float]:
    answer = connection.call(_PATH + "GetRuntimeMetric", wire.request(name))
    try:
        return wire.values(answer or b"")
    except wire.Malformed:
        return {}
