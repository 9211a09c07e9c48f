"""What is measured of Google TPUs: one row per tag."""

from functools import partial
from typing import Final

from otel_sysmetrics.spec import Fold, MetricSpec

_device: Final = partial(
    MetricSpec,
    collectors=("tpu",),
    labels=(("tpu", "tpu.index"),),
    attributes=("hw.name",),
)

MEMORY_USAGE: Final = _device(
    tag="tpu.{tpu}.memoryUsage",
    unit="%",
    brief="High-bandwidth memory in use, as a share of all of it.",
)
MEMORY_USAGE_BYTES: Final = _device(
    tag="tpu.{tpu}.memoryUsageBytes",
    unit="By",
    brief="High-bandwidth memory in use.",
)
DUTY_CYCLE: Final = _device(
    tag="tpu.{tpu}.dutyCycle",
    unit="%",
    brief="Share of time in which the TensorCore was busy.",
)
MEMORY_CAPACITY: Final = _device(
    tag="tpu.{tpu}.hbmCapacityTotal",
    unit="By",
    brief="High-bandwidth memory that there is.",
)
MEMORY_UTILIZATION: Final = _device(
    tag="tpu.{tpu}.runtimeHbmUtilization",
    unit="%",
    brief="Share of the high-bandwidth memory in use, as the runtime says.",
)
IDLE_DURATION: Final = _device(
    tag="tpu.{tpu}.tensorcoreIdleDuration",
    unit="s",
    brief="How long the TensorCore has been idle.",
    fold=Fold.LAST,
)
