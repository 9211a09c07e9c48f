"""The temperature of the CPU, from whichever sensors the machine has."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Final

from otel_sysmetrics.sources.portable import ask, portable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from otel_sysmetrics.sources.files import Files

# The whole package tells more than its cores; Tctl may carry an offset for the fans; a zone may lie beside the CPU.
_CLASSES: Final = tuple(
    re.compile(pattern)
    for pattern in (
        r"coretemp_package_id_\d+|(k10temp|zenpower)_tdie",
        r".*_tctl|k10temp",
        r"coretemp_core_\d+|.*_tccd\d+",
        r"cpu_thermal|x86_pkg_temp|soc_thermal",
    )
)
_MAX_PLAUSIBLE: Final = 150


def cpu_temperature(files: Files) -> float | None:
    """Return the mean of the best available class of CPU sensors in °C, None where there is none."""
    psutil = portable(files)
    if psutil is not None:
        return best_class(_of_psutil(ask(psutil, psutil, "sensors_temperatures") or {}))
    chips = best_class(_of_hwmon(files))
    # The kernel shows a thermal zone as a chip, too: both together would count it twice.
    return chips if chips is not None else best_class(_of_zones(files))


def best_class(readings: Iterable[tuple[str, float]]) -> float | None:
    """Return the mean of the plausible readings of the first class that has any.

    A reading is a sensor's name, `<chip>_<label>` in lower case, and its temperature in °C. A sensor that is off or
    broken shows 0, -128 or several hundred.
    """
    plausible = [(name, value) for name, value in readings if 0 < value <= _MAX_PLAUSIBLE]
    for pattern in _CLASSES:
        values = [value for name, value in plausible if pattern.fullmatch(name)]
        if values:
            return sum(values) / len(values)
    return None


def _of_hwmon(files: Files) -> Iterator[tuple[str, float]]:
    for chip in files.names("sys/class/hwmon"):
        folder = f"sys/class/hwmon/{chip}"
        name = files.text(folder, "name") or ""
        for file in files.names(folder):
            sensor, _, kind = file.rpartition("_")
            if sensor.startswith("temp") and kind == "input":
                label = files.text(folder, f"{sensor}_label") or ""
                yield _name(name, label), _degrees(files.number(folder, file))


def _of_zones(files: Files) -> Iterator[tuple[str, float]]:
    for zone in files.names("sys/class/thermal"):
        name = files.text("sys/class/thermal", zone, "type") or ""
        yield _name(name, ""), _degrees(files.number("sys/class/thermal", zone, "temp"))


def _of_psutil(chips: dict[str, list[object]]) -> Iterator[tuple[str, float]]:
    for chip, sensors in chips.items():
        for sensor in sensors:
            yield _name(chip, getattr(sensor, "label", "")), getattr(sensor, "current", None) or math.nan


def _name(chip: str, label: str) -> str:
    return "_".join(re.sub(r"[\W_]+", "_", word.strip().lower()) for word in (chip, label) if word.strip())


def _degrees(millidegrees: int | None) -> float:
    # Any of the hwmon files may fail with EIO at any time (https://github.com/giampaolo/psutil/issues/1009).
    if millidegrees is None or abs(millidegrees) > 1000 * _MAX_PLAUSIBLE:
        return math.nan
    return millidegrees / 1000
