"""A script that calls configure() twice and counts something itself."""

import time

from opentelemetry import metrics

from otel_sysmetrics import configure

configure()
configure()
metrics.get_meter("script").create_counter("script.steps").add(1, {"case": "twice"})
time.sleep(1)
