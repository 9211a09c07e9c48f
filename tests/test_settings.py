from __future__ import annotations

import ast
import inspect
import json
import os
from dataclasses import FrozenInstanceError, fields
from itertools import pairwise
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_sysmetrics import environment_variables
from otel_sysmetrics.catalog import CATALOG, KINDS
from otel_sysmetrics.collectors.network import Link, choose
from otel_sysmetrics.endpoints import Endpoint
from otel_sysmetrics.environment_variables import PREFIX
from otel_sysmetrics.otlp import export_interval, otlp_protocol
from otel_sysmetrics.selection import Selection
from otel_sysmetrics.settings import Settings, SettingsError, rank_attributes

NAMES: Final = [setting.name for setting in fields(Settings)]
SECONDS: Final = "a number of seconds from 0.1 to 86400"
PID: Final = "a process id, a whole number above 0"
FLAG: Final = "true or false"
MAP: Final = 'a map of attribute to text, number or bool, in the environment as JSON ({"team": "vision"})'

# Each setting: what it is, as keywords may say it, as the environment may say it.
CHOICES: Final[dict[str, tuple[object, list[object], list[str]]]] = {
    "sampling_interval": (2.5, [2.5, "2.5"], ["2.5", " 2.5 ", "25e-1"]),
    "pid": (42, [42, "42"], ["42", " 42 "]),
    "track_process_tree": (True, [True, "true"], ["true", "TRUE", " True "]),
    "disk_paths": (
        ("/", "/data"),
        [["/", "/data"], ("/", "/data"), "/,/data", ("/", "/data", "/")],
        ["/,/data", " / , /data ,", f"/{os.pathsep}/data", '["/", "/data"]'],
    ),
    "collectors": (("memory", "cpu"), [["memory", "cpu"], "memory,cpu"], ["memory,cpu", '["memory", "cpu"]']),
    "metrics_included": (
        ("default", "system.*"),
        [["default", "system.*"], "default,system.*"],
        ["default,system.*", '["default","system.*"]'],
    ),
    "metrics_excluded": (("gpu.[0-3].*",), [["gpu.[0-3].*"]], ["gpu.[0-3].*", '["gpu.[0-3].*"]']),
    "gpu_device_ids": (("0", "12"), [[0, 12], ["0", "12"], "0,12"], ["0,12", "[0, 12]", '["0", "12"]']),
    "no_cgroup": (True, [True], ["true"]),
    "network_interfaces": (("eth*", "!eth1"), [["eth*", "!eth1"]], ["eth*,!eth1", '["eth*", "!eth1"]']),
    "openmetrics_endpoints": (
        {"a": Endpoint("http://a:1/m"), "b": Endpoint("https://b/m", {"X": "y"}, timeout=2)},
        [
            {"a": "http://a:1/m", "b": {"url": "https://b/m", "headers": {"X": "y"}, "timeout": 2}},
            {"a": Endpoint("http://a:1/m"), "b": Endpoint("https://b/m", {"X": "y"}, timeout=2)},
        ],
        ['{"a": "http://a:1/m", "b": {"url": "https://b/m", "headers": {"X": "y"}, "timeout": "2"}}'],
    ),
    "openmetrics_filters": (
        (("a.*", ()), ("[bc]", (("gpu", "[01]"), ("x", "y")))),
        [{"a.*": {}, "[bc]": {"gpu": "[01]", "x": "y"}}, (("a.*", ()), ("[bc]", (("gpu", "[01]"), ("x", "y"))))],
        ['{"a.*": {}, "[bc]": {"gpu": "[01]", "x": "y"}}'],
    ),
    "openmetrics_headers": ({"X-Scope": "ml"}, [{"X-Scope": "ml"}], ['{"X-Scope": "ml"}']),
    "dcgm_exporter": ("http://a:9400/metrics", ["http://a:9400/metrics"], [" http://a:9400/metrics "]),
    "neuron_monitor_config": ("/etc/neuron.json", ["/etc/neuron.json"], ["/etc/neuron.json"]),
    "tpu_runtime_ports": ((8431, 8432), [[8431, 8432], "8431,8432"], ["8431,8432", "[8431, 8432]", " 8431 , 8432 "]),
    "apple_gpu_power_limit": (22.5, [22.5, "22.5"], ["22.5", " 22.5 "]),
    "shared_pid_namespace": (True, [True], ["true"]),
    "host_metrics": ("never", ["never"], ["never", " NEVER "]),
    "children": ("always", ["always"], ["always", "Always"]),
    "rank_attributes": (True, [True], ["true"]),
    "attributes": (
        {"team": "vision", "size": 4, "share": 0.5, "spot": True},
        [{"team": "vision", "size": 4, "share": 0.5, "spot": True}],
        ['{"team": "vision", "size": 4, "share": 0.5, "spot": true}'],
    ),
    "root_path": ("/host", ["/host"], ["/host"]),
    "disabled": (True, [True], ["true"]),
}


def variable(name: str) -> str:
    return PREFIX + name.upper()


def shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"


def load(**environ: str) -> Settings:
    return Settings.load(environ={variable(name): value for name, value in environ.items()})


def documentation() -> dict[str, str]:
    """Return what environment_variables.py says of each variable."""
    body = ast.parse(inspect.getsource(environment_variables)).body
    return {
        ast.unparse(before.target): ast.literal_eval(after.value)
        for before, after in pairwise(body)
        if isinstance(before, ast.AnnAssign) and isinstance(after, ast.Expr)
    }


def test_every_setting_has_a_row_above() -> None:
    assert sorted(CHOICES) == sorted(NAMES)


@pytest.mark.parametrize(
    ("name", "value", "chosen"),
    [(name, value, chosen) for name, (chosen, values, _) in CHOICES.items() for value in values],
)
def test_every_setting_is_a_keyword(name: str, value: object, chosen: object) -> None:
    keywords: dict[str, Any] = {name: value}

    assert getattr(Settings(**keywords), name) == chosen
    assert getattr(Settings.load(keywords, environ={}), name) == chosen


@pytest.mark.parametrize(
    ("name", "text", "chosen"),
    [(name, text, chosen) for name, (chosen, _, texts) in CHOICES.items() for text in texts],
)
def test_every_setting_is_a_variable(name: str, text: str, chosen: object) -> None:
    settings = load(**{name: text})

    assert getattr(settings, name) == chosen
    assert getattr(settings, name) != getattr(Settings(), name)


def test_a_keyword_holds_over_the_environment_and_the_environment_over_the_default() -> None:
    environ = {variable("sampling_interval"): "3", variable("pid"): "7"}

    settings = Settings.load({"sampling_interval": 4}, environ=environ)

    assert (settings.sampling_interval, settings.pid, settings.root_path) == (4, 7, "/")


def test_a_variable_that_a_keyword_overrules_may_be_wrong() -> None:
    environ = {variable("sampling_interval"): "soon"}

    assert Settings.load({"sampling_interval": 4}, environ=environ).sampling_interval == 4


def test_only_load_reads_the_real_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable("sampling_interval"), "3")

    assert Settings().sampling_interval == 15
    assert Settings.load().sampling_interval == 3


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("text", ["", "  "])
def test_an_empty_variable_counts_as_unset(name: str, text: str) -> None:
    assert load(**{name: text}) == Settings()


def test_an_empty_json_list_is_a_choice_of_nothing() -> None:
    assert load(collectors="[]").collectors == ()
    assert load(metrics_included="[]").metrics_included == ()


def test_settings_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        Settings().pid = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("sampling_interval", "soon", SECONDS),
        ("sampling_interval", "0", SECONDS),
        ("sampling_interval", "-1", SECONDS),
        ("sampling_interval", "0.09", SECONDS),
        ("sampling_interval", "86401", SECONDS),
        ("sampling_interval", "nan", SECONDS),
        ("sampling_interval", "inf", SECONDS),
        ("sampling_interval", "1e999", SECONDS),
        ("sampling_interval", "15s", SECONDS),
        ("pid", "0", PID),
        ("pid", "-1", PID),
        ("pid", "1.5", PID),
        ("pid", "self", PID),
        ("pid", "2147483648", PID),
        ("pid", 5000 * "9", PID),
        ("track_process_tree", "1", FLAG),
        ("no_cgroup", "yes", FLAG),
        ("rank_attributes", "on", FLAG),
        ("disabled", "0", FLAG),
        ("disk_paths", "data", "absolute paths"),
        ("disk_paths", "/,data", "absolute paths"),
        ("disk_paths", "[]", "absolute paths"),
        ("disk_paths", '["/"', "a list, divided by commas or as JSON"),
        ("disk_paths", 100_000 * "[", "a list, divided by commas or as JSON"),
        ("disk_paths", "[1]", "a list of texts"),
        ("collectors", "cpu,gpus,tpus", f"kinds out of {', '.join(KINDS)} (unknown: gpus, tpus)"),
        ("metrics_included", "gpu.[0", "globs such as gpu.*.temp (not one: 'gpu.[0')"),
        ("metrics_excluded", "a,gpu.0]", "globs such as gpu.*.temp (not one: 'gpu.0]')"),
        ("network_interfaces", "eth0,!", "globs such as gpu.*.temp (not one: '!')"),
        ("attributes", "team=vision", MAP),
        ("attributes", '["team"]', MAP),
        ("attributes", '{"team": null}', MAP),
        ("attributes", '{"team": ["vision"]}', MAP),
        ("attributes", '{"": "vision"}', MAP),
        ("attributes", 100_000 * "[", MAP),
        ("root_path", "host", "an absolute path"),
        ("root_path", "/ho\0st", "an absolute path"),
    ],
)
def test_a_wrong_value_is_one_error_that_names_variable_value_and_what_is_expected(
    name: str, text: str, expected: str
) -> None:
    with pytest.raises(SettingsError) as error:
        load(**{name: text})

    assert str(error.value) == f"{variable(name)}={shown(text)}: expected {expected}"


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("sampling_interval", True, SECONDS),
        ("sampling_interval", None, SECONDS),
        ("sampling_interval", 10**400, SECONDS),
        ("pid", True, PID),
        ("pid", 1.0, PID),
        ("disabled", 1, FLAG),
        ("disabled", None, FLAG),
        ("disk_paths", None, "a list of texts"),
        ("disk_paths", {"/": 1}, "a list of texts"),
        ("disk_paths", ["/\0"], "absolute paths"),
        ("collectors", 3, "a list of texts"),
        ("attributes", [("team", "vision")], MAP),
        ("attributes", {1: "vision"}, MAP),
        ("root_path", b"/host", "an absolute path"),
    ],
)
def test_a_wrong_keyword_is_the_same_error_under_the_keywords_name(name: str, value: Any, expected: str) -> None:  # noqa: ANN401
    keywords: dict[str, Any] = {name: value}
    with pytest.raises(SettingsError) as constructed:
        Settings(**keywords)
    with pytest.raises(SettingsError) as loaded:
        Settings.load(keywords, environ={})

    assert str(constructed.value) == str(loaded.value) == f"{name}={shown(value)}: expected {expected}"


def test_a_keyword_that_is_no_setting_is_an_error_that_lists_the_settings() -> None:
    with pytest.raises(SettingsError) as error:
        Settings.load({"sampling_intervall": 5}, environ={})

    assert str(error.value).startswith("sampling_intervall=5: expected one of the settings sampling_interval, pid, ")
    assert all(name in str(error.value) for name in NAMES)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(("sampling_interval", "soon"), ("pid", "self"), ("track_process_tree", "1"), ("disk_paths", "data")),
        *(("no_cgroup", "1"), ("rank_attributes", "1"), ("attributes", "x"), ("root_path", "x"), ("disabled", "1")),
    ],
)
def test_a_lenient_load_reports_a_wrong_value_and_the_default_holds(name: str, text: str) -> None:
    reported: list[SettingsError] = []

    settings = Settings.load(environ={variable(name): text}, report=reported.append)

    assert settings == Settings()
    assert [str(error).partition(":")[0] for error in reported] == [f"{variable(name)}={text!r}"]


def test_a_lenient_load_reports_every_wrong_value_once_and_keeps_the_right_ones() -> None:
    reported: list[SettingsError] = []
    environ = {variable("sampling_interval"): "soon", variable("pid"): "42", variable("no_cgroup"): "1"}

    settings = Settings.load({"nonsense": 1, "root_path": "/host"}, environ=environ, report=reported.append)

    assert settings == Settings(pid=42, root_path="/host")
    assert sorted(str(error).partition("=")[0] for error in reported) == [
        variable("no_cgroup"),
        variable("sampling_interval"),
        "nonsense",
    ]


def test_a_secret_value_is_not_shown() -> None:
    assert str(SettingsError("HEADERS", "s3cret", "key=value", secret=True)) == "HEADERS: expected key=value"


def test_a_glob_may_begin_with_a_set() -> None:
    """In the environment it looks like JSON, and is none."""
    assert load(metrics_included="[cg]pu.*").metrics_included == ("[cg]pu.*",)


@pytest.mark.parametrize("text", ["]cpu[", "cpu]", "[", "cpu.[!", '["cpu'])
def test_a_glob_whose_set_does_not_end_is_an_error(text: str) -> None:
    with pytest.raises(SettingsError, match="globs such as"):
        load(metrics_included=text)


@pytest.mark.parametrize(("name", "text"), [("pid", "1_0"), ("sampling_interval", "1_5")])
def test_the_underscore_of_python_is_no_digit(name: str, text: str) -> None:
    with pytest.raises(SettingsError):
        load(**{name: text})


@pytest.mark.parametrize("name", ["metrics_included", "metrics_excluded"])
def test_a_lenient_load_sends_nothing_where_a_filter_cannot_be_read(name: str) -> None:
    settings = Settings.load(environ={variable(name): "gpu.[0"}, report=lambda _: None)

    selection = Selection(settings.metrics_included, settings.metrics_excluded)
    assert not any(selection.tag(spec, spec.tag) for spec in CATALOG.values())


def test_a_lenient_load_runs_nothing_where_the_collectors_cannot_be_read() -> None:
    assert Settings.load(environ={variable("collectors"): "cpus"}, report=lambda _: None).collectors == ()


def test_a_lenient_load_counts_no_interface_where_their_list_cannot_be_read() -> None:
    settings = Settings.load(environ={variable("network_interfaces"): "["}, report=lambda _: None)

    assert choose({"eth0": Link(loopback=False), "lo": Link(loopback=True)}, settings.network_interfaces) == frozenset()


JSON: Final = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
).map(json.dumps)
ANY_TEXT: Final = st.text() | JSON | st.sampled_from([text for _, _, texts in CHOICES.values() for text in texts])
ANY_ENVIRONMENT: Final = st.dictionaries(st.sampled_from([variable(name) for name in NAMES]), ANY_TEXT)


@given(ANY_ENVIRONMENT)
def test_any_text_in_any_variable_loads_or_is_a_settings_error(environ: dict[str, str]) -> None:
    reported: list[SettingsError] = []
    lenient = Settings.load(environ=environ, report=reported.append)
    try:
        strict = Settings.load(environ=environ)
    except SettingsError:
        assert reported
    else:
        assert strict == lenient
        assert not reported


@pytest.mark.parametrize("name", ["collectors", "openmetrics_filters", "metrics_included", "openmetrics_endpoints"])
def test_an_error_is_one_line_whatever_stands_in_the_value(name: str) -> None:
    with pytest.raises(SettingsError) as error:
        Settings.load(environ={variable(name): '{"x\\ny": "(?\\n"}' if name.startswith("open") else "x\ny[\r\x1b"})

    assert str(error.value).isprintable()


def test_a_pattern_and_a_glob_that_nobody_would_write_are_errors() -> None:
    for name in ("metrics_included", "metrics_excluded", "network_interfaces", "openmetrics_filters"):
        with pytest.raises(SettingsError, match="characters"):
            load(**{name: 6000 * "a"})


def test_every_setting_has_its_variable_with_its_documentation_and_every_variable_its_setting() -> None:
    declared = {name: value for name, value in vars(environment_variables).items() if name.startswith("OTEL_")}

    assert declared == {variable(name): variable(name) for name in NAMES}
    assert list(documentation()) == [variable(name) for name in NAMES]


@pytest.mark.parametrize("name", NAMES)
def test_the_documented_default_is_the_default(name: str) -> None:
    """A default in backticks, a number or a flag is the value; any other text stands for no choice or for all."""
    _, _, documented = documentation()[variable(name)].removesuffix(".").partition("Default: ")
    default = getattr(Settings(), name)

    assert documented
    if documented.startswith("`") or documented[0].isdigit() or documented in {"true", "false"}:
        assert getattr(load(**{name: documented.strip("`")}), name) == default
    else:
        assert default == KINDS if documented == "all" and name == "collectors" else not default


@pytest.mark.parametrize(
    ("environ", "attributes"),
    [
        ({}, {}),
        (
            {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "8"},
            {"rank": 3, "local_rank": 1, "world_size": 8},
        ),
        (
            {"SLURM_JOB_ID": "77", "SLURM_PROCID": "3", "SLURM_LOCALID": "1"},
            {"slurm.job_id": "77", "slurm.procid": "3", "slurm.localid": "1"},
        ),
        ({"RANK": "", "LOCAL_RANK": "first", "WORLD_SIZE": "-1", "SLURM_JOB_ID": ""}, {}),
        ({"RANK": "²", "LOCAL_RANK": 5000 * "9"}, {}),
        ({"RANK": "0"}, {"rank": 0}),
    ],
)
def test_the_rank_is_what_torchrun_and_slurm_say(environ: dict[str, str], attributes: dict[str, object]) -> None:
    assert rank_attributes(environ) == attributes


@pytest.mark.parametrize(
    ("environ", "protocol"),
    [
        ({}, "http/protobuf"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "grpc"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": " GRPC "}, "grpc"),
        (
            {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "http/protobuf"},
            "http/protobuf",
        ),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "", "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": ""}, "http/protobuf"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "  "}, "http/protobuf"),
    ],
)
def test_the_protocol_is_the_metrics_one_else_the_general_one(environ: dict[str, str], protocol: str) -> None:
    assert otlp_protocol(environ) == protocol


@pytest.mark.parametrize("variable", ["OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL"])
def test_another_protocol_is_an_error_that_names_its_variable(variable: str) -> None:
    with pytest.raises(SettingsError) as error:
        otlp_protocol({variable: "http/json"})

    assert str(error.value) == f"{variable}='http/json': expected http/protobuf or grpc"


@pytest.mark.parametrize(("text", "seconds"), [("", 15), (" ", 15), ("60000", 60), ("500", 0.5), ("0.5", 0.0005)])
def test_the_export_interval_is_the_standard_one_in_milliseconds(text: str, seconds: float) -> None:
    assert export_interval(15, {"OTEL_METRIC_EXPORT_INTERVAL": text}) == seconds
    assert export_interval(15, {}) == 15


@pytest.mark.parametrize("text", ["0", "-1", "abc", "inf", "nan", "1e300"])
def test_an_export_interval_that_the_sdk_would_break_on_is_an_error(text: str) -> None:
    with pytest.raises(SettingsError) as error:
        export_interval(15, {"OTEL_METRIC_EXPORT_INTERVAL": text})

    assert str(error.value) == f"OTEL_METRIC_EXPORT_INTERVAL={text!r}: expected a number of milliseconds above 0"


def test_the_standard_variables_are_read_from_the_real_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in (("OTEL_METRIC_EXPORT_INTERVAL", "700"), ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"), ("RANK", "5")):
        monkeypatch.setenv(name, text)

    assert (export_interval(15), otlp_protocol(), rank_attributes()["rank"]) == (0.7, "grpc", 5)
