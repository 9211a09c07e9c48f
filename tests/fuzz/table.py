"""Every parser of foreign text, one row each: its name, how an input is read, and what its inputs look like."""

from __future__ import annotations

import re
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from otel_sysmetrics.collector import Unavailable
from otel_sysmetrics.collectors.amd import rocm_smi
from otel_sysmetrics.collectors.apple.accelerator import of_plist, of_text
from otel_sysmetrics.collectors.apple.registry import of_sysctl
from otel_sysmetrics.collectors.openmetrics.exposition import NotMetrics
from otel_sysmetrics.patterns import NotAPattern
from otel_sysmetrics.settings import SettingsError
from otel_sysmetrics.sources.http import FetchError
from tests.fuzz import corpus, readers
from tests.fuzz.binary import Answers, Frames, Messages, answers_of_http
from tests.fuzz.corpus import below, machine, older_machine
from tests.fuzz.edits import Documents, Form, Texts, Trees
from tests.test_settings import CHOICES, variable
from tests.tpu import MESSAGES, response

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

_LATER: Final = (machine(60), older_machine(60))
_PROCESS: Final = ("proc/7/", "proc/1/mountinfo", "proc/uptime", "sys/fs/cgroup")
_END_OF_LINE: Final = re.compile(r"(?m)(?<=[ }])[-+.0-9a-zA-Z]+$")
_REPLY_VALUE: Final = re.compile(r'(?<=")[0-9.]+(?="\])')


@dataclass(frozen=True)
class Parser:
    """One parser: `read` gives values by what they are of, or raises what `refuses` names, and nothing else.

    `opened` makes `read` where a server has to run for it.
    """

    name: str
    read: Callable[[Any], Mapping[str, float]] | None
    form: Form[Any]
    refuses: tuple[type[Exception], ...] = ()
    opened: Callable[[], AbstractContextManager[Any]] | None = None

    def reading(self) -> AbstractContextManager[Callable[[Any], Mapping[str, float]]]:
        """Return what makes `read`."""
        if self.opened is not None:
            return self.opened()
        assert self.read is not None
        return nullcontext(self.read)


def _files(*prefixes: str, older: bool = True, facts: str = "-") -> Trees:
    return Trees(below(*_LATER[: 1 + older], prefixes=prefixes), facts=facts)


def _amd_smi() -> list[Mapping[str, str]]:
    static = corpus.parts_of("amd", "static")
    recorded = corpus.recorded("amd", "amd-smi_static*")
    metrics = [*corpus.amd("amd-smi"), *corpus.recorded("amd", "amd-smi_metric*")]
    return [{"metric": metric, "static": each} for metric in metrics for each in (*static, *recorded)]


def _frames() -> list[list[tuple[int, int, int, bytes]]]:
    listed = MESSAGES["ListSupportedMetricsResponse"]()
    for name in readers.NAMES:
        listed.supported_metric.add().metric_name = name
    messages = (listed.SerializeToString(), *(response(name, {0: 5, 1: 7.5}) for name in readers.NAMES))
    frames = [(4, 0, 0, b"\0\3\0\0\0\x64"), (4, 1, 0, b""), (8, 0, 0, b"\0\1\0\0")]
    for stream, message in zip((1, 3, 5), messages, strict=True):
        data = b"\0" + len(message).to_bytes(4, "big") + message
        frames += [(1, 4, stream, b"\x88\x5f"), (0, 0, stream, data[:9]), (0, 0, stream, data[9:]), (1, 5, stream, b"")]
    return [frames, [*frames[:3], (6, 0, 0, b"12345678"), *frames[3:], (3, 0, 5, b"\0\0\0\1"), (7, 0, 0, b"\0" * 8)]]


def _environments() -> list[Mapping[str, str]]:
    sets: Sequence[Mapping[str, str]] = [
        {variable(name): texts[number % len(texts)] for name, (_, _, texts) in CHOICES.items()} for number in range(3)
    ]
    ranks = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "SLURM_PROCID": "3"}
    standard = {"OTEL_METRIC_EXPORT_INTERVAL": "15000", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
    return [{**each, **ranks, **standard} for each in sets]


PARSERS: Final = (
    Parser(
        "rocm-smi",
        readers.gpus(rocm_smi.parse),
        Documents([*corpus.amd("rocm-smi"), *corpus.recorded("amd", "rocm-smi*.json")]),
    ),
    Parser("amd-smi", readers.amd_smi_both, Trees(_amd_smi(), re.compile(r"-?[0-9]+(?:\.[0-9]+)?(?=[,\n}])"))),
    Parser("amdgpu files", readers.amdgpu, _files("sys/class/drm", older=False)),
    Parser(
        "ioreg property list",
        readers.accelerators(of_plist),
        Texts(
            [*corpus.texts("apple", "*.plist"), *corpus.recorded("apple", "ioreg_a_plist*")],
            re.compile(r"(?<=>)[0-9]+(?=<)"),
        ),
    ),
    Parser(
        "ioreg text",
        readers.accelerators(of_text),
        Texts(
            [*corpus.texts("apple", "*.txt"), *corpus.recorded("apple", "ioreg_text*")],
            re.compile(r"(?<==)[0-9]+(?=[,}])"),
        ),
    ),
    Parser("sysctl", lambda text: {"memory": of_sysctl(text)[0] or 1}, Texts([corpus.SYSCTL])),
    Parser("apple child", readers.door, Documents(corpus.texts("apple", "*.jsonl"))),
    Parser(
        "neuron-monitor",
        readers.neuron,
        Documents(
            [
                *corpus.parts_of("trainium", "line"),
                *(line for text in corpus.recorded("neuron", "neuron-monitor*") for line in text.splitlines() if line),
            ]
        ),
    ),
    Parser("gcipuinfo", readers.ipus, Documents(corpus.parts_of("ipu", "devices"))),
    Parser(
        "OpenMetrics",
        readers.exposition,
        Texts([corpus.PAGE, corpus.GPU_PAGE, *corpus.recorded("openmetrics", "*")], _END_OF_LINE),
        (NotMetrics,),
    ),
    Parser("OpenMetrics by byte", readers.exposition_in_bytes, Texts([corpus.PAGE], _END_OF_LINE), (NotMetrics,)),
    Parser(
        "dcgm-exporter",
        None,
        Texts([corpus.GPU_PAGE, *corpus.recorded("openmetrics", "dcgm*")], _END_OF_LINE),
        (Unavailable,),
        readers.dcgm("/metrics"),
    ),
    Parser("Prometheus reply", None, Documents([corpus.REPLY]), (Unavailable,), readers.dcgm("/api/v1/query")),
    Parser("HTTP", None, Answers(answers_of_http([corpus.PAGE])), (FetchError,), readers.fetched),
    Parser("TPU messages", readers.tpus, Messages(corpus.served())),
    Parser("TPU frames", None, Frames(_frames()), (), readers.frames),
    Parser("TPU on the PCI bus", readers.pci, _files("sys/bus/pci", older=False)),
    Parser("CPU files", readers.host("cpu"), _files("proc/stat", "proc/loadavg", "sys/class/hwmon", *_PROCESS)),
    Parser("thermal zones", readers.host("cpu"), _files("proc/stat", "sys/class/thermal", older=False)),
    Parser("memory files", readers.host("memory"), _files("proc/meminfo", *_PROCESS)),
    Parser("network files", readers.host("network"), _files("proc/1/net", "sys/class/net", older=False)),
    Parser(
        "disk files",
        readers.host("disk"),
        _files("proc/diskstats", "proc/1/mountinfo", "sys/class/block", facts="sys/"),
    ),
    Parser("patterns", readers.pattern, Texts(corpus.PATTERNS), (NotAPattern,)),
    Parser("settings", readers.environment, Trees(_environments()), (SettingsError,)),
)
