"""A machine of stand-ins that are all there at once, and everything that can go wrong with them."""

from __future__ import annotations

import json
import os
import random
import shutil
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tests.fuzz.corpus import amd, machine, parts_of
from tests.nvml import FOREVER, Answer, Code, NvmlMachine
from tests.parts import CAPTURES, program, tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

GPUS: Final = 2
_TOOL: Final = """
    mode=; read mode <{folder}/{name}.mode
    case "$mode" in
        garbage) echo '{{"card0": {{"GPU use (%)": '; head -c 2000 /dev/urandom;;
        dies) kill -9 $$;;
        fails) exit 1;;
        silent) while read mode <{folder}/{name}.mode && [ "$mode" = silent ]; do sleep 0.05; done;;
        *) {well};;
    esac
    """
_MONITOR: Final = """
    while :; do
        mode=; read mode <{folder}/neuron-monitor.mode
        case "$mode" in
            garbage) echo '{{"neuron_runtime_data": [';;
            dies) exit 1;;
            silent) ;;
            *) cat {folder}/neuron.json;;
        esac
        sleep 0.2
    done
    """


class Fault(NamedTuple):
    """Something that goes wrong until it is mended."""

    name: str
    begin: Callable[[], None]
    end: Callable[[], None]


class Machine:
    """Folders, programs and GPUs; `faults` is everything that can go wrong with them and with the servers."""

    def __init__(self, folder: Path, nvml: NvmlMachine) -> None:
        self.folder = folder
        self.root = folder / "root"
        self.data = folder / "data"
        self.data.mkdir()
        self.nvml = nvml
        self.files: Mapping[str, str] = machine(0) | {"dev/neuron0": ""}
        tree(self.root, self.files)
        self._write_tools()
        self._ipus()
        self.faults = (
            *self._faults_of_modes(),
            *self._faults_of_nvml(),
            *self._faults_of_ipus(),
            *self._faults_of_files(),
        )

    def step(self, seconds: int) -> None:
        """Let the counters of the machine below `root` go on."""
        self.files = machine(seconds)
        for name in ("proc/stat", "proc/7/stat", "proc/diskstats", "proc/1/net/dev"):
            if (self.root / name).exists():
                (self.root / name).write_text(self.files[name])

    def _write_tools(self) -> None:
        (self.folder / "amd.json").write_text(amd("rocm-smi")[0])
        (self.folder / "neuron.json").write_text(parts_of("trainium", "line")[0] + "\n")
        shutil.copy(CAPTURES / "apple" / "m1_air.plist", self.folder / "apple.plist")
        folder = self.folder
        for name, well in {"rocm-smi": f"cat {folder}/amd.json", "ioreg": f"cat {folder}/apple.plist"}.items():
            program(folder / "bin", name, _TOOL.format(folder=folder, name=name, well=well))
        program(folder / "bin", "sysctl", "echo 'hw.memsize: 17179869184'")
        program(folder / "bin", "neuron-monitor", _MONITOR.format(folder=folder))
        for name in ("rocm-smi", "ioreg", "neuron-monitor"):
            (folder / f"{name}.mode").write_text("\n")

    def _faults_of_modes(self) -> Iterator[Fault]:
        modes = {
            "rocm-smi": ("garbage", "dies", "fails", "silent"),
            "ioreg": ("garbage", "dies", "fails", "silent"),
            "neuron-monitor": ("garbage", "dies", "silent"),
            "openmetrics": ("fails", "html", "garbage", "cut", "silent"),
            "dcgm": ("fails", "html", "garbage", "cut", "silent"),
            "tpu": ("down", "silent"),
        }
        for name, words in modes.items():
            path = self.folder / f"{name}.mode"
            for word in words:
                yield Fault(f"{name} {word}", partial(_put, path, word), partial(_put, path))

    def _faults_of_nvml(self) -> Iterator[Fault]:
        answers: dict[str, Any] = {
            "lost": Code.GPU_IS_LOST,
            "closed": Code.UNINITIALIZED,
            "slow": Code.TIMEOUT,
            "unknown": Code.UNKNOWN,
        }
        for name, code in answers.items():
            for gpu in (None, 1):
                yield Fault(
                    f"nvml {name} {gpu}",
                    partial(self.nvml.set, "*", code, gpu),
                    partial(self.nvml.unset, "*", gpu),
                )
        power = "nvmlDeviceGetPowerUsage"
        yield Fault(
            "nvml hangs",
            lambda: self.nvml.set("nvmlDeviceGetUtilizationRates", Answer((1, 1), delay=FOREVER), 1),
            lambda: self.nvml.unset("nvmlDeviceGetUtilizationRates", 1),
        )
        yield Fault("nvml odd", lambda: self.nvml.set(power, 2**32 - 1, 0), lambda: self.nvml.set(power, 100_000, 0))
        yield Fault("nvml unplugged", lambda: setattr(self.nvml, "count", 1), lambda: setattr(self.nvml, "count", GPUS))

    def _ipus(self, **faults: object) -> None:
        devices = json.loads(parts_of("ipu", "devices")[0])
        for device in devices:
            device["user process id"] = str(os.getpid())
        path = self.folder / "poplar" / "gcipuinfo.json"
        new = path.with_suffix(".new")
        new.write_text(json.dumps({"devices": devices, **faults}))
        new.replace(path)

    def _faults_of_ipus(self) -> Iterator[Fault]:
        ways: tuple[dict[str, object], ...] = (
            {"getDevices": {"raise": "RuntimeError", "text": "no"}},
            {"getDevices": {"raise": "Mute"}},
            {"getDevices": {"return": None}},
            {"getDevices": {"return": []}},
            {"getDevices": {"hang": True}},
            {"gcipuinfo": {"raise": "OSError", "text": "no"}, "getDevices": {"raise": "RuntimeError"}},
        )
        for way in ways:
            yield Fault(f"ipu {way}", partial(self._ipus, **way), self._ipus)

    def _faults_of_files(self) -> Iterator[Fault]:
        def lose(name: str) -> None:
            (self.root / name).unlink(missing_ok=True)

        def spoil(name: str) -> None:
            (self.root / name).write_bytes(random.randbytes(5000))

        def mend(name: str) -> None:
            (self.root / name).write_text(self.files.get(name, ""))

        for name in ("proc/stat", "proc/meminfo", "proc/7/stat", "proc/7/cgroup", "proc/diskstats", "proc/1/net/dev"):
            for way in (lose, spoil):
                yield Fault(f"{name} {way.__name__}", partial(way, name), partial(mend, name))
        away = self.folder / "away"
        yield Fault("path away", partial(os.rename, self.data, away), partial(os.rename, away, self.data))


def _put(path: Path, word: str = "") -> None:
    new = path.with_suffix(".new")
    new.write_text(f"{word}\n")
    new.replace(path)
