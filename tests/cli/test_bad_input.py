"""A user's mistake is one line that names it and says what is expected, and status 2."""

from __future__ import annotations

import subprocess
from inspect import signature
from typing import TYPE_CHECKING

import pytest
from opentelemetry.sdk.metrics import MeterProvider

from otel_sysmetrics.catalog import KINDS
from tests.running import COMMAND, clean_environment

if TYPE_CHECKING:
    from pathlib import Path

OURS = "OTEL_PYTHON_SYSMETRICS_"
COMMANDS = {
    "run": ("run",),
    "run once": ("run", "--once"),
    "exec": ("exec", "--", "touch", "started"),
    "sample": ("sample",),
    "doctor": ("doctor",),
}
# Variable, value, what is expected, and the commands that read it.
WRONG_VARIABLES = [
    (f"{OURS}COLLECTORS", "gpu", f"expected kinds out of {', '.join(KINDS)} ", COMMANDS),
    (f"{OURS}SAMPLING_INTERVAL", "-1", "expected a number of seconds from 0.1", COMMANDS),
    (f"{OURS}DISK_PATHS", "data", "expected absolute paths", COMMANDS),
    (f"{OURS}METRICS_INCLUDED", "gpu.[0.temp", "expected globs such as ", COMMANDS),
    (f"{OURS}NO_CGROUP", "yes", "expected true or false", COMMANDS),
    (f"{OURS}ATTRIBUTES", "team=vision", "expected a map of attribute to ", COMMANDS),
    (
        "OTEL_EXPORTER_OTLP_PROTOCOL",
        "http/json",
        "expected http/protobuf or grpc",
        ["run", "run once", "exec", "doctor"],
    ),
    (
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        "localhost:4318",
        "expected a URL with http:// or https://",
        ["run", "run once", "exec"],
    ),
    (
        "OTEL_METRIC_EXPORT_INTERVAL",
        "soon",
        "expected a number of milliseconds above 0",
        ["run", "run once", "exec", "doctor"],
    ),
]
# Words after `otel-sysmetrics`, and what stands in the line.
WRONG_WORDS = [
    (("runn",), "No such command 'runn'"),
    (("run", "--verbose"), "--verbose"),
    (("run", "--exporter", "otel"), "'otel' is not one of 'otlp', 'console', 'none'"),
    (("run", "--pid", "0"), "'--pid': 0 is not in the range x>=1"),
    (("exec",), "Missing argument '-- CMD...'"),
    (("exec", "--exporter", "otel", "--", "true"), "'otel' is not one of 'otlp', 'console', 'none'"),
    (("sample", "--window", "0"), "'--window': 0.0 is not in the range 0.1<=x<=86400"),
    (("sample", "--window", "nan"), "'--window': 'nan' is not a number of seconds"),
    (("sample", "--timeout", "never"), "'--timeout': 'never' is not a valid float"),
    (("sample", "--format", "yaml"), "'yaml' is not one of 'table', 'json'"),
    (("sample", "--timeout", "nan"), "'--timeout': 'nan' is not a number of seconds"),
    (("sample", "--timeout", "inf"), "'--timeout': inf is not in the range 0<=x<=86400"),
    (("doctor", "--timeout", "0"), "'--timeout': 0.0 is not in the range 0.1<=x<=86400"),
    (("doctor", "--timeout", "nan"), "'--timeout': 'nan' is not a number of seconds"),
    (("doctor", "nvidia"), "Got unexpected extra argument (nvidia)"),
    (("catalog", "--format", "html"), "'html' is not one of 'table', 'markdown', 'json'"),
]


def mistake(words: tuple[str, ...], folder: Path, **variables: str) -> str:
    """Make a mistake and return the one line that is said about it."""
    done = subprocess.run(
        [*COMMAND, *words],
        env=clean_environment(**variables),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    (line,) = [line for line in done.stderr.splitlines() if line != "SDK is disabled."]  # the SDK's own, before 1.40
    assert line.startswith("otel-sysmetrics: ")
    assert list(folder.iterdir()) == [], "the command of `exec` was not started"
    return line


@pytest.mark.parametrize(
    ("command", "variable", "value", "expected"),
    [
        (command, variable, value, expected)
        for variable, value, expected, commands in WRONG_VARIABLES
        for command in commands
    ],
)
def test_a_wrong_variable_is_named_with_what_is_expected(
    tmp_path: Path, command: str, variable: str, value: str, expected: str
) -> None:
    """Variable, value and expectation in one line."""
    line = mistake(COMMANDS[command], tmp_path, **{variable: value})
    assert f"{variable}={value!r}: {expected}" in line


@pytest.mark.parametrize(("words", "expected"), WRONG_WORDS)
def test_a_wrong_word_is_named(tmp_path: Path, words: tuple[str, ...], expected: str) -> None:
    """Unknown commands, options and values are quoted, with what there is instead."""
    assert expected in mistake(words, tmp_path)


def test_what_the_exporter_cannot_read_is_said_too(tmp_path: Path) -> None:
    """The exporter's own error names no variable; ours names the family and repeats the value."""
    variables = {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_TIMEOUT": "soon"}
    line = mistake(("run",), tmp_path, **variables)
    assert "OTEL_EXPORTER_OTLP_*" in line
    assert "soon" in line


def test_nothing_can_be_sampled_where_the_sdk_is_off(tmp_path: Path) -> None:
    """An empty table would be a riddle."""
    assert "OTEL_SDK_DISABLED" in mistake(("sample",), tmp_path, OTEL_SDK_DISABLED="true")


@pytest.mark.parametrize("command", ["run", "run once", "exec"])
@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_COMPRESSION": "zip"}, "zip"),
        pytest.param(
            {"OTEL_METRICS_EXEMPLAR_FILTER": "always"},
            "OTEL_*",
            marks=pytest.mark.skipif(
                "exemplar_filter" not in signature(MeterProvider).parameters, reason="an SDK without exemplars"
            ),
        ),
    ],
)
def test_what_only_the_sdk_reads_is_one_line_too(
    tmp_path: Path, command: str, variables: dict[str, str], said: str
) -> None:
    """Its errors are of any class and name no variable."""
    assert said in mistake(COMMANDS[command], tmp_path, **variables)


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_headers_that_cannot_be_read_are_named_and_not_shown(tmp_path: Path, protocol: str) -> None:
    """The SDK would warn with their text, and they hold a token."""
    line = mistake(
        ("run", "--once"),
        tmp_path,
        OTEL_EXPORTER_OTLP_PROTOCOL=protocol,
        OTEL_EXPORTER_OTLP_HEADERS="Bearer s3cret",
    )
    assert "OTEL_EXPORTER_OTLP_HEADERS: expected key=value" in line
    assert "s3cret" not in line
