"""An application that ends as it is told once it gets a signal: `ending.py bare|auto|code|configure END`."""

import signal
import sys


def say(line: str) -> None:
    """Say a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def instrument(way: str) -> None:
    """Be an application that measures something itself and has the hardware measured; `auto` finds that done."""
    if way == "configure":
        from otel_sysmetrics import configure

        configure()
    from opentelemetry import metrics

    if way == "code":
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

        from otel_sysmetrics import SysMetricsInstrumentor

        provider = MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())])
        metrics.set_meter_provider(provider)
        SysMetricsInstrumentor().instrument(meter_provider=provider)
    metrics.get_meter("application").create_counter("application.starts").add(1)


def main(way: str, end: str) -> None:
    """Wait for a signal, which may be the end itself."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})  # kept where it comes before it is waited for
    if end == "handled SIGTERM":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(4))
    if way != "bare":
        instrument(way)
    say("ready")
    if end == "at once":
        return
    signal.sigwaitinfo({signal.SIGUSR1})
    say("last words")
    if end == "sys.exit":
        sys.exit(3)
    if end == "exception":
        message = "as asked for"
        raise RuntimeError(message)


if __name__ == "__main__":
    main(*sys.argv[1:])
