"""What the user chose: validated, frozen, and the only reader of the environment."""

from __future__ import annotations

import json
import math
import os
import re
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final

from otel_sysmetrics.catalog import KINDS
from otel_sysmetrics.environment_variables import PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from otel_sysmetrics.reading import AttributeValue

DEFAULT_INTERVAL: Final = 15.0
MIN_INTERVAL: Final = 0.1
_MAX_INTERVAL: Final = 86_400.0


# An index or an identifier (UUID, AMD unique id, PCI address); no list stands for all devices, an empty one for none.
_DEVICE: Final = re.compile(r"[0-9]{1,5}|(?=.{8})[0-9A-Za-z]+([-:.][0-9A-Za-z]+)*")


class SettingsError(ValueError):
    """A setting that cannot be read: names where it came from, its value, and what is expected."""

    def __init__(self, source: str, value: object, expected: str) -> None:
        super().__init__(f"{source}={value!r}: expected {expected}")


class _Unreadable(ValueError):
    """Inside this module: what is expected in place of a value."""


def _flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    word = value.strip().lower() if isinstance(value, str) else ""
    if word not in {"true", "false"}:
        raise _Unreadable("true or false")
    return word == "true"


def _seconds(value: object) -> float:
    expected = f"a number of seconds from {MIN_INTERVAL} to {_MAX_INTERVAL:.0f}"
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise _Unreadable(expected)
    try:
        seconds = float(value)
    except (OverflowError, ValueError):
        raise _Unreadable(expected) from None
    if not math.isfinite(seconds) or not MIN_INTERVAL <= seconds <= _MAX_INTERVAL:
        raise _Unreadable(expected)
    return seconds


def _pid(value: object) -> int | None:
    expected = "a process id, a whole number above 0"
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise _Unreadable(expected)
    try:
        pid = int(value)
    except ValueError:
        raise _Unreadable(expected) from None
    if not 0 < pid < 2**31:
        raise _Unreadable(expected)
    return pid


def _split(value: object, separators: str = ",", *, numbers: bool = False) -> tuple[str, ...]:
    """Read a list of texts, or of `numbers` too: JSON where it starts with a bracket, else divided at a separator."""
    if isinstance(value, str):
        text = value.strip()
        if text.startswith("["):
            try:
                value = json.loads(text)
            except (RecursionError, ValueError):
                raise _Unreadable("a list, divided by commas or as JSON") from None
        else:
            for separator in separators[1:]:
                text = text.replace(separator, separators[0])
            value = [item.strip() for item in text.split(separators[0]) if item.strip()]
    kinds = (str, int) if numbers else (str,)
    if not isinstance(value, list | tuple | set | frozenset) or not all(type(item) in kinds for item in value):
        raise _Unreadable("a list of texts")
    return tuple(dict.fromkeys(map(str, value)))


def _paths(value: object) -> tuple[str, ...]:
    paths = _split(value, "," + os.pathsep)
    if not paths or not all(os.path.isabs(path) and "\0" not in path for path in paths):
        raise _Unreadable("absolute paths")
    return paths


def _root(value: object) -> str:
    if not isinstance(value, str) or not os.path.isabs(value) or "\0" in value:
        raise _Unreadable("an absolute path")
    return value


def _devices(value: object) -> tuple[str, ...] | None:
    if value is None:
        return None
    ids = _split(value, numbers=True)
    if not all(_DEVICE.fullmatch(item) for item in ids):
        raise _Unreadable("a list of GPU indices or UUIDs, such as 0,2 or GPU-5a2c9d1e-…")
    return tuple(str(int(item)) if item.isdecimal() else item for item in ids)


def _kinds(value: object) -> tuple[str, ...]:
    kinds = _split(value)
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        message = f"kinds out of {', '.join(KINDS)} (unknown: {', '.join(unknown)})"
        raise _Unreadable(message)
    return kinds


def _globs(value: object) -> tuple[str, ...]:
    globs = _split(value)
    for glob in globs:
        opened = glob.replace("[[]", "").replace("[]]", "")
        if not glob.strip("!") or opened.count("[") != opened.count("]"):
            message = f"globs such as gpu.*.temp (not one: {glob!r})"
            raise _Unreadable(message)
    return globs


def _attributes(value: object) -> Mapping[str, AttributeValue]:
    expected = 'a map of attribute to text, number or bool, in the environment as JSON ({"team": "vision"})'
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (RecursionError, ValueError):
            raise _Unreadable(expected) from None
    if not isinstance(value, dict) or not all(
        isinstance(key, str) and key and isinstance(item, str | bool | int | float) for key, item in value.items()
    ):
        raise _Unreadable(expected)
    return dict(value)


_READERS: Final[Mapping[str, Callable[[object], object]]] = {
    "sampling_interval": _seconds,
    "pid": _pid,
    "track_process_tree": _flag,
    "disk_paths": _paths,
    "collectors": _kinds,
    "metrics_included": _globs,
    "metrics_excluded": _globs,
    "gpu_device_ids": _devices,
    "no_cgroup": _flag,
    "network_interfaces": _globs,
    "shared_pid_namespace": _flag,
    "rank_attributes": _flag,
    "attributes": _attributes,
    "root_path": _root,
    "disabled": _flag,
}

# A filter that cannot be read must not let through more than was asked for, so what it filters is left out.
_INSTEAD: Final[Mapping[str, object]] = {
    "collectors": (),
    "metrics_included": (),
    "metrics_excluded": ("*",),
    "gpu_device_ids": (),
    "network_interfaces": ("!*",),
}


@dataclass(frozen=True, slots=True)
class Settings:
    """What to read, how often, and of which process.

    Every field is also the environment variable OTEL_PYTHON_SYSMETRICS_<UPPER> and a keyword of `instrument()`;
    environment_variables.py says what each means. Construction raises SettingsError and reads no environment:
    `Settings.load` does.
    """

    sampling_interval: float = DEFAULT_INTERVAL
    pid: int | None = None
    track_process_tree: bool = False
    disk_paths: tuple[str, ...] = ("/",)
    collectors: tuple[str, ...] = KINDS
    metrics_included: tuple[str, ...] = ("default",)
    metrics_excluded: tuple[str, ...] = ()
    gpu_device_ids: tuple[str, ...] | None = None
    no_cgroup: bool = False
    network_interfaces: tuple[str, ...] = ()
    shared_pid_namespace: bool = False
    rank_attributes: bool = False
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)
    root_path: str = "/"
    disabled: bool = False

    def __post_init__(self) -> None:
        for name, read in _READERS.items():
            value = getattr(self, name)
            try:
                object.__setattr__(self, name, read(value))
            except _Unreadable as error:
                raise SettingsError(name, value, str(error)) from None

    @classmethod
    def load(
        cls,
        keywords: Mapping[str, object] | None = None,
        *,
        environ: Mapping[str, str] | None = None,
        report: Callable[[SettingsError], None] | None = None,
    ) -> Settings:
        """Read keywords over environment over defaults.

        Without `report` the first wrong setting raises SettingsError. With it every wrong setting is reported, and
        the default holds, or nothing is selected where the default would send more than was asked for.
        """
        chosen: dict[str, Any] = {}
        for name, source, value in _given(keywords or {}, os.environ if environ is None else environ):
            try:
                chosen[name] = _read(name, source, value)
            except SettingsError as error:
                if report is None:
                    raise
                report(error)
                if name in _INSTEAD:
                    chosen[name] = _INSTEAD[name]
        return cls(**chosen)


def _read(name: str, source: str, value: object) -> object:
    if name not in _READERS:
        raise SettingsError(source, value, f"one of the settings {', '.join(_READERS)}")
    try:
        return _READERS[name](value)
    except _Unreadable as error:
        raise SettingsError(source, value, str(error)) from None


def _given(keywords: Mapping[str, object], environ: Mapping[str, str]) -> Iterable[tuple[str, str, object]]:
    """List what was set as (name, where it was set, value); an empty variable counts as unset, as OTel has it."""
    for setting in fields(Settings):
        variable = PREFIX + setting.name.upper()
        if setting.name not in keywords and environ.get(variable, "").strip():
            yield setting.name, variable, environ[variable]
    for name, value in keywords.items():
        yield name, name, value


_RANK_NUMBERS: Final = {"rank": "RANK", "local_rank": "LOCAL_RANK", "world_size": "WORLD_SIZE"}
_RANK_DIGITS: Final = 9
_RANK_TEXTS: Final = {
    "slurm.job_id": "SLURM_JOB_ID",
    "slurm.procid": "SLURM_PROCID",
    "slurm.localid": "SLURM_LOCALID",
}


def rank_attributes(environ: Mapping[str, str] | None = None) -> dict[str, AttributeValue]:
    """Return which rank of a distributed job this process is, as torchrun and Slurm say in the environment."""
    given = os.environ if environ is None else environ
    ranks: dict[str, AttributeValue] = {
        key: int(given[variable])
        for key, variable in _RANK_NUMBERS.items()
        if given.get(variable, "").isdecimal() and len(given[variable]) <= _RANK_DIGITS
    }
    ranks.update({key: given[variable] for key, variable in _RANK_TEXTS.items() if given.get(variable)})
    return ranks


def otlp_protocol(environ: Mapping[str, str] | None = None) -> str:
    """Return the OTLP protocol that the standard variables name, `http/protobuf` where they name none."""
    given = os.environ if environ is None else environ
    for variable in ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        protocol = given.get(variable, "").strip().lower()
        if protocol in {"http/protobuf", "grpc"}:
            return protocol
        if protocol:
            raise SettingsError(variable, given[variable], "http/protobuf or grpc")
    return "http/protobuf"


def export_interval(default: float, environ: Mapping[str, str] | None = None) -> float:
    """Return the seconds between two exports: OTEL_METRIC_EXPORT_INTERVAL (milliseconds), else `default`."""
    given = (os.environ if environ is None else environ).get("OTEL_METRIC_EXPORT_INTERVAL", "").strip()
    if not given:
        return default
    try:
        milliseconds = float(given)
    except ValueError:
        milliseconds = -1.0
    if not 0 < milliseconds <= _MAX_INTERVAL * 1000:
        raise SettingsError("OTEL_METRIC_EXPORT_INTERVAL", given, "a number of milliseconds above 0")
    return milliseconds / 1000
