"""Google TPUs through the metric service of their runtime."""

from otel_sysmetrics.collectors.tpu.collector import parts

__all__ = ["parts"]
