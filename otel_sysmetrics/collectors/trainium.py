"""Placeholder."""

from otel_sysmetrics.catalog import CATALOG
from otel_sysmetrics.collector import Collector, Context, NotHere, Part


def parts(_context: Context) -> tuple[Part, ...]:
    """Return the one part."""
    return (Part("trainium", None, tuple(s for s in CATALOG.values() if "trainium" in s.collectors), probe),)


def probe() -> Collector:
    """Find nothing yet."""
    raise NotHere("not written yet")
