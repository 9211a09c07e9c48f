"""The GPU of Apple silicon: what ioreg shows, and what a program of our own reads of the system's private libraries."""

from otel_sysmetrics.collectors.apple.collector import parts

__all__ = ["parts"]
