"""How well the collectors themselves are."""

from typing import Final

from otel_sysmetrics.spec import MetricSpec

SUCCESS: Final = MetricSpec(
    tag="sysmetrics.collector.success",
    unit="{success}",
    brief="1 while a collector answers, 0 when its last attempt failed or its values are stale.",
    collectors=(),
    attributes=("collector", "part"),
)
DURATION: Final = MetricSpec(
    tag="sysmetrics.collector.duration",
    unit="s",
    brief="Time that a collector's last sample took.",
    collectors=(),
    attributes=("collector", "part"),
)
