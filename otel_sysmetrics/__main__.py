"""`python -m otel_sysmetrics` is `otel-sysmetrics`."""

from otel_sysmetrics.cli import main

if __name__ == "__main__":
    main()
