"""Sends a checkpoint right before its end, on a machine that is a folder: `checkpoint.py ROOT ours|foreign`."""

from __future__ import annotations

import os
import sys
import time

from otel_sysmetrics import SysMetricsInstrumentor, configure

SENT = 5_000_000


def write(sent: int) -> None:
    """Let the machine's one interface have sent so many bytes."""
    path = os.path.join(sys.argv[1], "proc/1/net/dev")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(f"{path}.new", "w", encoding="ascii") as file:
        file.write(f"Inter-|\n face |\n  eth0: 1 0 0 0 0 0 0 0 {sent} 0 0 0 0 0 0 0\n")
    os.replace(f"{path}.new", path)


def instrument_under_a_foreign_provider() -> None:
    """Be an application with a MeterProvider of its own."""
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    provider = MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())])
    SysMetricsInstrumentor().instrument(meter_provider=provider, root_path=sys.argv[1], collectors="network")


write(0)
if sys.argv[2] == "ours":
    configure(root_path=sys.argv[1], collectors="network")
else:
    instrument_under_a_foreign_provider()
time.sleep(1.4)
write(SENT)
