"""What an application waits for at its start: imports and instrument(), in wall time, in fresh processes.

`import otel_sysmetrics` starts from the bare interpreter. The instrumentors are imported right after BaseInstrumentor,
which every instrumentation shares. instrument() gets a MeterProvider of the SDK that is there already. Ours then loads
its collectors in threads of its own, of which no wall time tells: the last row is the CPU time of everything from the
instrumentor's import until the first collect, 1.2 s after instrument() and after two samples; theirs samples then.
"""

from __future__ import annotations

import sys
import time

from side_by_side import OURS, THEIRS, measure, ratio, report, table

ROUNDS = 9
PACKAGE = "import otel_sysmetrics"
BASE = "import BaseInstrumentor"
INSTRUMENTOR = "import the instrumentor"
INSTRUMENT = "instrument()"
FIRST = "CPU time to the first collect"


def main() -> None:
    """Measure and print the table."""
    cases = measure(__file__, (PACKAGE, OURS, THEIRS), rounds=ROUNDS)
    ours, theirs = cases[OURS], cases[THEIRS]
    rows = [
        (name, *(f"{side[name]:.1f} ms" for side in (ours, theirs)), ratio(ours[name], theirs[name]))
        for name in (BASE, INSTRUMENTOR, INSTRUMENT, FIRST)
    ]
    package = (PACKAGE, f"{cases[PACKAGE][PACKAGE]:.1f} ms", "", "")
    table((f"medians of {ROUNDS} processes", OURS, THEIRS, "ratio"), [package, *rows])


def child(case: str) -> None:
    """Measure one case in this process."""
    if case == PACKAGE:
        begun = time.perf_counter()
        import otel_sysmetrics  # noqa: F401 - measured

        report({PACKAGE: _milliseconds_since(begun)})
        return
    base = _import_base()
    cpu = time.process_time()
    begun = time.perf_counter()
    if case == OURS:
        from otel_sysmetrics import SysMetricsInstrumentor as Instrumentor
    else:
        from opentelemetry.instrumentation.system_metrics import SystemMetricsInstrumentor as Instrumentor
    imported = _milliseconds_since(begun)
    cpu -= time.process_time()
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader])
    cpu += time.process_time()
    begun = time.perf_counter()
    Instrumentor().instrument(meter_provider=provider)
    instrumented = _milliseconds_since(begun)
    time.sleep(1.2)
    reader.collect()
    first = 1000 * (time.process_time() - cpu)
    report({BASE: base, INSTRUMENTOR: imported, INSTRUMENT: instrumented, FIRST: first})


def _import_base() -> float:
    begun = time.perf_counter()
    import opentelemetry.instrumentation.instrumentor  # noqa: F401 - measured

    return _milliseconds_since(begun)


def _milliseconds_since(begun: float) -> float:
    return 1000 * (time.perf_counter() - begun)


if __name__ == "__main__":
    if sys.argv[1:]:
        child(*sys.argv[1:])
    else:
        main()
