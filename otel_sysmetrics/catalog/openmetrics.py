"""What endpoints of the formats of Prometheus and OpenMetrics show, under their own names."""

from typing import Final

from otel_sysmetrics.spec import Fold, MetricSpec

# Of a counter a point has the kind counter, and of what states a unit that unit.
SERIES: Final = MetricSpec(
    tag="openmetrics.{endpoint}.{metric}",
    unit="",
    brief="Series of an OpenMetrics endpoint; a counter keeps the endpoint's own total.",
    collectors=("openmetrics",),
    labels=(("endpoint", "openmetrics.endpoint"),),
    attributes=("openmetrics.metric",),
    fold=Fold.LAST,
    from_zero=False,
    any_attributes=True,
)
