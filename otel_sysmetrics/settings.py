"""What the user chose: validated, frozen, and read from the environment nowhere else."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final

from otel_sysmetrics import endpoints, values
from otel_sysmetrics.catalog import KINDS
from otel_sysmetrics.environment_variables import PREFIX
from otel_sysmetrics.reading import in_one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from otel_sysmetrics.endpoints import Endpoint, Filters
    from otel_sysmetrics.reading import AttributeValue

DEFAULT_INTERVAL: Final = 15.0
_SAID: Final = 80


class SettingsError(ValueError):
    """A setting that cannot be read: names where it came from, its value, and what is expected.

    A long value is cut; of a `secret` one nothing is shown. `readable` is what of a map can be read, None where that is
    not known.
    """

    readable: object = None

    def __init__(self, source: str, value: object, expected: str, *, secret: bool = False) -> None:
        text = repr(value)
        shown = "" if secret else f"={text if len(text) <= _SAID else text[:_SAID] + '…'}"
        super().__init__(f"{source}{shown}: expected {in_one_line(expected)}")


_READERS: Final[Mapping[str, Callable[[object], object]]] = {
    "sampling_interval": values.seconds,
    "pid": values.pid,
    "track_process_tree": values.flag,
    "disk_paths": values.paths,
    "collectors": values.kinds,
    "metrics_included": values.globs,
    "metrics_excluded": values.globs,
    "gpu_device_ids": values.devices,
    "no_cgroup": values.flag,
    "network_interfaces": values.globs,
    "openmetrics_endpoints": endpoints.endpoints,
    "openmetrics_filters": endpoints.filters,
    "openmetrics_headers": endpoints.headers,
    "dcgm_exporter": endpoints.url,
    "neuron_monitor_config": values.file,
    "tpu_runtime_ports": values.ports,
    "apple_gpu_power_limit": values.watts,
    "shared_pid_namespace": values.flag,
    "host_metrics": values.frequency,
    "children": values.frequency,
    "rank_attributes": values.flag,
    "attributes": values.attributes,
    "root_path": values.root,
    "disabled": values.flag,
}

# A filter that cannot be read must not let through more than was asked for, so what it filters is left out.
_INSTEAD: Final[Mapping[str, object]] = {
    "collectors": (),
    "metrics_included": (),
    "metrics_excluded": ("*",),
    "gpu_device_ids": (),
    "network_interfaces": ("!*",),
}

# What cannot be read here switches off what it is for.
_OFF: Final[Mapping[str, Mapping[str, object]]] = {
    "openmetrics_filters": {"openmetrics_endpoints": {}},
    "openmetrics_headers": {"openmetrics_endpoints": {}, "dcgm_exporter": None},
}

_SECRET: Final = frozenset({"openmetrics_endpoints", "openmetrics_headers", "dcgm_exporter"})


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
    openmetrics_endpoints: Mapping[str, Endpoint] = field(default_factory=dict)
    openmetrics_filters: Filters = ()
    openmetrics_headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    dcgm_exporter: str | None = field(default=None, repr=False)
    neuron_monitor_config: str | None = None
    tpu_runtime_ports: tuple[int, ...] | None = None
    apple_gpu_power_limit: float | None = None
    shared_pid_namespace: bool = False
    host_metrics: str = "auto"
    children: str = "auto"
    rank_attributes: bool = False
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)
    root_path: str = "/"
    disabled: bool = False

    def __post_init__(self) -> None:
        for name, read in _READERS.items():
            value = getattr(self, name)
            try:
                object.__setattr__(self, name, read(value))
            except values.Unreadable as error:
                raise SettingsError(name, value, str(error), secret=name in _SECRET) from None

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
        off: dict[str, object] = {}
        for name, source, value in _given(keywords or {}, os.environ if environ is None else environ):
            try:
                chosen[name] = _read(name, source, value)
            except SettingsError as error:
                if report is None:
                    raise
                report(error)
                off.update(_OFF.get(name, {}))
                if error.readable is not None:
                    chosen[name] = error.readable
                elif name in _INSTEAD:
                    chosen[name] = _INSTEAD[name]
        return cls(**{**chosen, **off})


def _read(name: str, source: str, value: object) -> object:
    if name not in _READERS:
        secret = not isinstance(value, int | float)  # a misspelt name may stand before headers
        raise SettingsError(source, value, f"one of the settings {', '.join(_READERS)}", secret=secret)
    try:
        return _READERS[name](value)
    except values.Unreadable as error:
        wrong = SettingsError(source, value, str(error), secret=name in _SECRET)
        wrong.readable = getattr(error, "readable", None)
        raise wrong from None


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


_JOB_VARIABLES: Final = (("SLURM_JOB_ID",), ("MASTER_ADDR", "MASTER_PORT"))


def job_variables(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return what the scheduler or the launcher of a distributed job says of the job as a whole."""
    given = os.environ if environ is None else environ
    groups = (names for names in _JOB_VARIABLES if all(given.get(name) for name in names))
    return {name: given[name] for names in groups for name in names}


def runtime_folder(environ: Mapping[str, str] | None = None) -> str:
    """Return the user's own folder for what lives as long as a session, empty where there is none."""
    return (os.environ if environ is None else environ).get("XDG_RUNTIME_DIR", "")


def has_service_name(environ: Mapping[str, str] | None = None) -> bool:
    """Tell whether the standard variables name the service."""
    given = os.environ if environ is None else environ
    attributes = given.get("OTEL_RESOURCE_ATTRIBUTES", "").split(",")
    return bool(given.get("OTEL_SERVICE_NAME", "").strip()) or any(
        attribute.strip().startswith("service.name=") for attribute in attributes
    )


def unknown_variables(environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Return the variables that have our prefix and are none of ours: a mistyped one has no effect."""
    known = {PREFIX + setting.name.upper() for setting in fields(Settings)}
    given = os.environ if environ is None else environ
    return tuple(sorted(name for name in given if name.startswith(PREFIX) and name not in known))


_TOOL_VARIABLES: Final = ("HOME", "LD_LIBRARY_PATH", "PATH", "ROCM_HOME", "ROCM_PATH", "SYSTEMROOT", "TMPDIR")


def tool_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return what a vendor's tool is given of our environment: where things lie, no secrets, and no other language."""
    given = os.environ if environ is None else environ
    return {"LC_ALL": "C"} | {name: given[name] for name in _TOOL_VARIABLES if name in given}


def tpu_ports(environ: Mapping[str, str] | None = None) -> str:
    """Return what Google's own variable says of the ports of the TPU runtimes, as it stands."""
    return (os.environ if environ is None else environ).get("TPU_RUNTIME_METRICS_PORTS", "")
