"""What is measured of Graphcore IPUs: one row per tag."""

from functools import partial
from typing import Final

from otel_sysmetrics.spec import MetricSpec, Scope

_device: Final = partial(
    MetricSpec,
    collectors=("ipu",),
    scope=Scope.PROCESS,
    labels=(("ipu", "ipu.index"),),
    attributes=("hw.id", "wandb.key"),
)

BOARD_TEMPERATURE: Final = _device(
    tag="ipu.{ipu}.average_board_temp",
    unit="Cel",
    brief="Mean temperature of the board.",
)
DIE_TEMPERATURE: Final = _device(
    tag="ipu.{ipu}.average_die_temp",
    unit="Cel",
    brief="Mean temperature of the die.",
)
CLOCK: Final = _device(
    tag="ipu.{ipu}.clock",
    unit="MHz",
    brief="Clock of the IPU.",
)
POWER: Final = _device(
    tag="ipu.{ipu}.ipu_power",
    unit="W",
    brief="Power drawn by the IPU.",
)
BOARD_POWER: Final = _device(
    tag="ipu.{ipu}.total_board_power",
    unit="W",
    brief="Power drawn by the board.",
)
UTILIZATION: Final = _device(
    tag="ipu.{ipu}.ipu_utilisation",
    unit="%",
    brief="Busy share of the IPU.",
)
SESSION_UTILIZATION: Final = _device(
    tag="ipu.{ipu}.ipu_utilisation_session",
    unit="%",
    brief="Busy share of the IPU since a process attached to it.",
)
LINK_SPEED: Final = _device(
    tag="ipu.{ipu}.link_speed",
    unit="{GT}/s",
    brief="Speed of the link to the host.",
)
OTHER: Final = _device(
    tag="ipu.{ipu}.{key}",
    unit="",
    brief="Any other number that an IPU has, in the unit that it comes with.",
    labels=(("ipu", "ipu.index"), ("key", "wandb.key")),
    on=False,
)
