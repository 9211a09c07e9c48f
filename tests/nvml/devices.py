"""Devices for the stand-in: two healthy ones, those of tests/captures/nvidia, and odd ones from public reports."""

from __future__ import annotations

import json
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from tests.nvml.answers import EVERY_CALL, FOREVER, Answer, Code, Device, Moving, Process, Says

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CAPTURES: Final = Path(__file__).parents[1] / "captures" / "nvidia"


def _gpm(**metrics: float) -> dict[str, Says]:
    return {f"nvmlGpmMetricsGet metric={name[1:]}": value for name, value in metrics.items()}


H100: Final[Device] = {
    "nvmlDeviceGetName": "NVIDIA H100 80GB HBM3",
    "nvmlDeviceGetBrand": 14,
    "nvmlDeviceGetArchitecture": 9,
    "nvmlDeviceGetNumGpuCores": 16896,
    "nvmlDeviceGetVirtualizationMode": 0,
    "nvmlDeviceGetUtilizationRates": {"gpu": 97, "memory": 41},
    "nvmlDeviceGetEncoderUtilization": (0, 167000),
    "nvmlDeviceGetDecoderUtilization": (0, 167000),
    "nvmlDeviceGetMemoryInfo": {"total": 80 * 2**30, "free": 20 * 2**30, "used": 60 * 2**30},
    "nvmlDeviceGetMemoryInfo_v2": {
        "total": 80 * 2**30,
        "reserved": 512 * 2**20,
        "free": 20 * 2**30,
        "used": 60 * 2**30 - 512 * 2**20,
    },
    "nvmlDeviceGetBAR1MemoryInfo": {"bar1Total": 128 * 2**30, "bar1Free": 127 * 2**30, "bar1Used": 2**30},
    "nvmlDeviceGetTemperature sensor=0": 57,
    "nvmlDeviceGetTemperatureV sensor=0": 57,
    "nvmlDeviceGetPowerUsage": 612345,
    "nvmlDeviceGetEnforcedPowerLimit": 700000,
    "nvmlDeviceGetPowerManagementLimit": 700000,
    "nvmlDeviceGetTotalEnergyConsumption": Moving(9_000_000_000, 600_000),
    "nvmlDeviceGetClockInfo clock=0": 1980,
    "nvmlDeviceGetClockInfo clock=1": 1965,
    "nvmlDeviceGetClockInfo clock=2": 2619,
    "nvmlDeviceGetClockInfo clock=3": 1545,
    "nvmlDeviceGetMemoryErrorCounter": 0,
    "nvmlDeviceGetTotalEccErrors": 0,
    "nvmlDeviceGetEccMode": (1, 1),
    "nvmlDeviceGetFanSpeed": Code.NOT_SUPPORTED,
    "nvmlDeviceGetFanSpeed_v2": Code.NOT_SUPPORTED,
    "nvmlDeviceGetNumFans": 0,
    "nvmlDeviceGetComputeRunningProcesses_v3": (),
    "nvmlDeviceGetGraphicsRunningProcesses_v3": (),
    "nvmlDeviceGetMPSComputeRunningProcesses_v3": (),
    "nvmlDeviceGetPcieThroughput": Answer((120_000,), delay=20),
    "nvmlDeviceGetPcieSpeed": 32000,
    "nvmlDeviceGetCurrPcieLinkGeneration": 5,
    "nvmlDeviceGetCurrPcieLinkWidth": 16,
    "nvmlDeviceGetMaxPcieLinkGeneration": 5,
    "nvmlDeviceGetMaxPcieLinkWidth": 16,
    "nvmlDeviceGetMigMode": {"current": 0, "pending": 0},
    "nvmlDeviceGetMaxMigDeviceCount": 0,
    "nvmlDeviceGetFieldValues field=185": 612345,
    "nvmlDeviceGetFieldValues field=186": 640001,
    "nvmlGpmQueryDeviceSupport": 1,
    "nvmlGpmQueryIfStreamingEnabled": 0,
    **_gpm(_2=91.5, _3=44.25, _5=62.0, _7=60.5, _10=38.75, _11=0.0, _12=7.5, _13=1.25),
    **_gpm(_20=1500.0, _21=900.0, _60=21000.0, _61=20500.0),
}

GEFORCE: Final[Device] = {
    "nvmlDeviceGetName": "NVIDIA GeForce RTX 4080 SUPER",
    "nvmlDeviceGetBrand": 5,
    "nvmlDeviceGetArchitecture": 8,
    "nvmlDeviceGetNumGpuCores": 10240,
    "nvmlDeviceGetVirtualizationMode": 0,
    "nvmlDeviceGetUtilizationRates": {"gpu": 73, "memory": 22},
    "nvmlDeviceGetEncoderUtilization": (12, 167000),
    "nvmlDeviceGetDecoderUtilization": (0, 167000),
    "nvmlDeviceGetMemoryInfo": {"total": 16 * 2**30, "free": 10 * 2**30, "used": 6 * 2**30},
    "nvmlDeviceGetMemoryInfo_v2": {
        "total": 16 * 2**30,
        "reserved": 448 * 2**20,
        "free": 10 * 2**30,
        "used": 6 * 2**30 - 448 * 2**20,
    },
    "nvmlDeviceGetBAR1MemoryInfo": {"bar1Total": 16 * 2**30, "bar1Free": 15 * 2**30, "bar1Used": 2**30},
    "nvmlDeviceGetTemperature sensor=0": 63,
    "nvmlDeviceGetTemperatureV sensor=0": 63,
    "nvmlDeviceGetPowerUsage": 241_500,
    "nvmlDeviceGetEnforcedPowerLimit": 320_000,
    "nvmlDeviceGetPowerManagementLimit": 320_000,
    "nvmlDeviceGetTotalEnergyConsumption": Moving(70_000_000, 240_000),
    "nvmlDeviceGetClockInfo clock=0": 2610,
    "nvmlDeviceGetClockInfo clock=1": 2610,
    "nvmlDeviceGetClockInfo clock=2": 11251,
    "nvmlDeviceGetClockInfo clock=3": 1950,
    "nvmlDeviceGetFanSpeed": 41,
    "nvmlDeviceGetFanSpeed_v2 fan=0": 41,
    "nvmlDeviceGetFanSpeed_v2 fan=1": 44,
    "nvmlDeviceGetNumFans": 2,
    "nvmlDeviceGetComputeRunningProcesses_v3": (),
    "nvmlDeviceGetGraphicsRunningProcesses_v3": (),
    "nvmlDeviceGetMPSComputeRunningProcesses_v3": (),
    "nvmlDeviceGetPcieThroughput": Answer((20_000,), delay=20),
    "nvmlDeviceGetPcieSpeed": 16000,
    "nvmlDeviceGetCurrPcieLinkGeneration": 4,
    "nvmlDeviceGetCurrPcieLinkWidth": 16,
    "nvmlDeviceGetMaxPcieLinkGeneration": 4,
    "nvmlDeviceGetMaxPcieLinkWidth": 16,
    "nvmlDeviceGetFieldValues field=185": 241_500,
    "nvmlDeviceGetFieldValues field=186": 250_001,
    "nvmlGpmQueryDeviceSupport": 0,
}

MIG_PARENT: Final[Device] = {
    "nvmlDeviceGetMigMode": {"current": 1, "pending": 1},
    "nvmlDeviceGetMaxMigDeviceCount": 7,
    "nvmlDeviceGetUtilizationRates": Code.NOT_SUPPORTED,
    "nvmlDeviceGetEncoderUtilization": Code.NOT_SUPPORTED,
    "nvmlDeviceGetDecoderUtilization": Code.NOT_SUPPORTED,
    "nvmlGpmSampleGet": Code.NOT_SUPPORTED,
}


@dataclass(frozen=True)
class Slice:
    """A MIG slice of a device: it has memory, and GPM by its instance, and no load, power or temperature."""

    instance: int
    compute: int = 0
    total: int = 20 * 2**30
    used: int = 2**30
    uuid: str | None = None
    gpm: Mapping[int, float] = field(default_factory=dict)

    def answers(self) -> Device:
        """Return what its handle answers."""
        free = self.total - self.used
        return {
            "nvmlDeviceGetName": "NVIDIA H100 80GB HBM3 MIG 2g.20gb",
            "nvmlDeviceGetUUID": self.uuid or f"MIG-{self.instance:08x}-5a5a-4b4b-8c8c-0123456789ab",
            "nvmlDeviceGetGpuInstanceId": self.instance,
            "nvmlDeviceGetComputeInstanceId": self.compute,
            "nvmlDeviceGetMemoryInfo": (self.total, free, self.used),
            "nvmlDeviceGetMemoryInfo_v2": (self.total, 0, free, self.used),
            "nvmlDeviceGetAttributes_v2": (32, 2, 2, 0, 2, 0, 2, 2, self.total // 2**20),
        }


@dataclass(frozen=True)
class Capture:
    """A machine as a file in tests/captures/nvidia describes it."""

    driver: str
    devices: Sequence[Device]
    slices: Mapping[int, Mapping[int, Slice]]


def captured(name: str) -> Capture:
    """Read tests/captures/nvidia/<name>.json."""
    with open(CAPTURES / f"{name}.json", encoding="utf-8") as file:
        capture = json.load(file)
    devices = capture["devices"]
    return Capture(
        driver=capture["driver"],
        devices=[{call: _says(answer) for call, answer in device["answers"].items()} for device in devices],
        slices={
            index: {int(slot): Slice(**part) for slot, part in device["slices"].items()}
            for index, device in enumerate(devices)
            if "slices" in device
        },
    )


def _says(answer: object) -> Says:
    match answer:
        case {"error": str(name), "values": values}:
            return Answer(values, code=Code[name])
        case {"error": str(name)}:
            return Code[name]
        case {"moving": [start, step]}:
            return Moving(start, step)
        case {"processes": processes}:
            return [Process(**process) for process in processes]
    return cast("Says", answer)


@dataclass(frozen=True)
class Odd:
    """The machine that an entry of odd_devices.json is about: where one device is lost, it is the middle of three."""

    devices: Sequence[Device] = (H100,)
    driver: str = "580.95.05"
    installed: bool = True
    faults: Sequence[tuple[str, Says, int | None]] = ()


# What that file calls the functions of NVML, where it is not their name without nvmlDeviceGet.
_ODD_CALLS: Final[Mapping[str, Sequence[str]]] = {
    "ClockInfo_MEM": ("nvmlDeviceGetClockInfo clock=2",),
    "ClockInfo_SM": ("nvmlDeviceGetClockInfo clock=1",),
    "ComputeRunningProcesses": ("nvmlDeviceGetComputeRunningProcesses_v3",),
    "FanSpeed": ("nvmlDeviceGetFanSpeed", "nvmlDeviceGetFanSpeed_v2"),
    "Temperature": ("nvmlDeviceGetTemperature", "nvmlDeviceGetTemperatureV"),
}
_ODD_FAULTS: Final[Mapping[str, str]] = {
    "HandleByIndex": "nvmlDeviceGetHandleByIndex_v2",
    "anything_with_an_old_handle": EVERY_CALL,
}


def odd(entry: Mapping[str, Any]) -> Odd:
    """Translate an entry of odd_devices.json, where calls have short names and numbers may be prose."""
    if "calls" not in entry:
        start = entry.get("nvmlInitWithFlags")
        if start is None:
            return Odd(installed=False)
        return Odd(faults=[("nvmlInitWithFlags", _odd_start(start), None)])
    faults = [
        (_ODD_FAULTS[call], _odd_answer(answer), 1) for call, answer in entry["calls"].items() if call in _ODD_FAULTS
    ]
    if faults:
        return Odd(devices=(H100,) * 3, faults=faults)
    device: dict[str, Says] = {"nvmlDeviceGetName": entry["name"]}
    for call, answer in entry["calls"].items():
        for full in _ODD_CALLS.get(call, (f"nvmlDeviceGet{call}",)):
            device[full] = _odd_answer(answer)
    if "MemoryInfo" in entry["calls"]:  # those that give nothing else are of drivers without the newer function
        device.setdefault("nvmlDeviceGetMemoryInfo_v2", Code.FUNCTION_NOT_FOUND)
    return Odd(devices=(device,), driver=entry.get("driver", "580.95.05"))


def _odd_start(answer: Mapping[str, Any]) -> Answer:
    if "sleeps" in answer:
        return Answer(delay=FOREVER)
    if "signal" in answer:
        return Answer(signal=signal.Signals[answer["signal"]])
    return Answer(code=answer["rc"])


def _odd_answer(answer: Mapping[str, Any]) -> Says:
    match answer:
        case {"out": str()}:  # "total equals MemTotal of the host"
            total = 127_600_748 * 1024
            values: Sequence[int] = (total, total // 2, total // 2)
        case {"out": values}:
            pass
        case {"list": str()}:  # "real sizes"
            values = Process(4242, 20 * 2**30)
        case {"list": processes}:
            values = [number for process in processes for number in _odd_process(process)]
        case {"gpu": gpu, "memory": memory}:
            values = (gpu, memory)
        case {"current": current, "pending": pending}:
            values = (current, pending)
        case {"value": value}:
            values = (_odd_number(value),)
        case _:
            values = ()
    return Answer(values, code=answer["rc"])


def _odd_process(process: Mapping[str, Any]) -> Process:
    return Process(_odd_number(process["pid"]), process["usedGpuMemory"])


def _odd_number(value: int | str) -> int:
    return int(value.lstrip("~")) if isinstance(value, str) else value
