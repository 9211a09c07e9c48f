"""What the amdgpu driver's files say, without any tool."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from otel_sysmetrics.collectors.amd.gpu import (
    Gpu,
    cap,
    celsius,
    count,
    first_said,
    pci_address,
    share,
    unique_id,
    watts,
    words,
)
from otel_sysmetrics.sources.files import fields

if TYPE_CHECKING:
    from otel_sysmetrics.sources.files import Files

_FOLDER: Final = "sys/class/drm"
_NODE: Final = re.compile(r"renderD([0-9]{1,5})")
_SENSOR: Final = re.compile(r"temp[0-9]{1,3}_label")
_VENDOR: Final = "0x1002"
_POWERS: Final = ("power1_average", "power1_input")
_SENSORS: Final = (("memory", "mem"), ("junction", "junction"), ("edge", "edge"))


class Sysfs:
    """The render nodes of the amdgpu driver."""

    name = "the amdgpu driver's files"

    def __init__(self, files: Files) -> None:
        self._files = files

    def read(self, _seconds: float = 0.0) -> list[Gpu]:
        """Return the GPUs in the order of their render nodes."""
        nodes = {int(match[1]): match[0] for name in self._files.names(_FOLDER) if (match := _NODE.fullmatch(name))}
        found = [f"{_FOLDER}/{name}/device" for _, name in sorted(nodes.items())]
        return [_gpu(self._files, index, device) for index, device in enumerate(filter(self._is_amdgpu, found))]

    def close(self) -> None:
        """Hold nothing."""

    def _is_amdgpu(self, device: str) -> bool:
        # The older radeon driver has AMD's vendor too, and none of these files.
        text = self._files.text(device, "vendor")
        return text is not None and text.strip() == _VENDOR and self._files.exists(device, "mem_info_vram_total")


def _gpu(files: Files, index: int, device: str) -> Gpu:
    def read(name: str) -> str | None:
        return files.text(device, f"{name}")

    who = Gpu(
        index,
        unique_id=unique_id(read("unique_id")),
        pci=pci_address(fields(files.lines(device, "uevent"), "=").get("PCI_SLOT_NAME")),
        name=words(read("product_name")),
    )
    # Other files than this one wake a GPU that sleeps, or fail, as the kernel likes.
    if (read("power/runtime_status") or "").strip() == "suspended":
        return who
    hwmon = _hwmon(files, device)
    inputs = _inputs(files, hwmon)
    return replace(
        who,
        use=share(read("gpu_busy_percent")),
        used=count(read("mem_info_vram_used")),
        total=count(read("mem_info_vram_total")),
        activity=share(read("mem_busy_percent")),
        overdrive=share(read("pp_mem_od")),
        temperatures=tuple(
            (place, celsius(files.text(hwmon, inputs[label]), "mC") if label in inputs else None)
            for place, label in _SENSORS
        ),
        power=first_said(watts(files.text(hwmon, name), "uW") for name in _POWERS),
        limit=cap(files.text(hwmon, "power1_cap"), "uW"),
    )


def _hwmon(files: Files, device: str) -> str:
    """Return the folder of the driver's own sensors, which others of the board's may stand beside."""
    found = [f"{device}/hwmon/{name}" for name in files.names(device, "hwmon")]
    driver = (folder for folder in found if (files.text(folder, "name") or "").strip() == "amdgpu")
    return next(driver, found[0] if found else f"{device}/hwmon/none")


def _inputs(files: Files, hwmon: str) -> dict[str, str]:
    """Return the file of each temperature, by its label; older kernels have only that of the edge, and no label."""
    names = files.names(hwmon)
    labels = [name for name in names if _SENSOR.fullmatch(name)]
    found = {(files.text(hwmon, name) or "").strip(): name.replace("label", "input") for name in labels}
    return found if "temp1_label" in names else {"edge": "temp1_input", **found}
