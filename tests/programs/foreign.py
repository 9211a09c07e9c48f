"""An application with a MeterProvider of its own, with or without a reader; says `ready` once it stood for election."""

import sys
import threading
import time

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

from otel_sysmetrics import SysMetricsInstrumentor

readers = [] if "--unread" in sys.argv else [PeriodicExportingMetricReader(OTLPMetricExporter())]
provider = MeterProvider(readers)
SysMetricsInstrumentor().instrument(meter_provider=provider, sampling_interval=float(sys.argv[1]))
while not any(thread.name == "otel-sysmetrics watch" for thread in threading.enumerate()):
    time.sleep(0.02)
sys.stdout.write("ready\n")
sys.stdout.flush()
time.sleep(300)
