"""An application that logs everything and prints what it would export: `talkative.py FILE`, which ends it."""

import logging
import os
import sys
import threading

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, PeriodicExportingMetricReader

from otel_sysmetrics import Settings, SysMetricsInstrumentor

logging.basicConfig(level=logging.DEBUG)
provider = MeterProvider([PeriodicExportingMetricReader(ConsoleMetricExporter(), export_interval_millis=500)])
SysMetricsInstrumentor().instrument(meter_provider=provider)
logging.getLogger("application").debug("%r", Settings.load(report=logging.getLogger("application").error))
while not os.path.exists(sys.argv[1]):
    threading.Event().wait(0.05)
