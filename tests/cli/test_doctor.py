"""`otel-sysmetrics doctor` says what is here, what is not and why, in one line each."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from tests.running import Running, clean_environment, command

if TYPE_CHECKING:
    from pathlib import Path


def doctor(*words: str, **variables: str) -> list[str]:
    """Return the lines of a doctor who found the configuration in order."""
    with command("doctor", *words, environment=clean_environment(**variables)) as program:
        assert program.finish() == 0, program.tell()
    assert program.errors == []
    return program.lines


def findings(lines: list[str]) -> dict[str, str]:
    """Return state and reason by part: the lines of the table below its head."""
    names = ("cpu", "memory", "disk /", "disk devices", "disk /nowhere", "network")
    table = [line for line in lines if line.startswith(names)]
    return {name: line.removeprefix(name).strip() for line in table for name in names if line.split("  ")[0] == name}


def test_one_line_for_each_part() -> None:
    """Every part of every kind has its line, and this machine has what any Linux has."""
    found = findings(doctor())
    assert list(found) == ["cpu", "memory", "disk /", "disk devices", "network"]
    assert all(text.startswith("here ") for name, text in found.items() if name in {"cpu", "memory", "disk /"})
    assert f"{os.cpu_count()} logical CPUs" in found["cpu"]
    assert "GiB of memory" in found["memory"]


def test_what_is_ill_says_why_and_is_no_failure() -> None:
    """A path that is missing costs itself; the status stays 0, since nothing is wrong with the configuration."""
    found = findings(doctor(OTEL_PYTHON_SYSMETRICS_DISK_PATHS="/,/nowhere"))
    assert found["disk /"].startswith("here ")
    assert found["disk /nowhere"].startswith("ill ")
    assert "No such file or directory" in found["disk /nowhere"]


def test_what_hangs_is_named_and_hangs_nobody(tmp_path: Path) -> None:
    """A /proc/meminfo that never answers: the others are examined, and the doctor leaves in time."""
    os.makedirs(tmp_path / "proc")
    (tmp_path / "proc" / "stat").write_text("cpu  1 0 1 1\ncpu0 1 0 1 1\n")
    os.mkfifo(tmp_path / "proc" / "meminfo")
    found = findings(
        doctor(
            "--timeout",
            "0.5",
            OTEL_PYTHON_SYSMETRICS_ROOT_PATH=str(tmp_path),
            OTEL_PYTHON_SYSMETRICS_COLLECTORS="cpu,memory",
        )
    )
    assert found["cpu"].startswith("here ")
    assert found["memory"].split(maxsplit=1) == ["ill", "did not answer within 0.5 s"]


def test_the_watched_process_has_its_line() -> None:
    """Whether it is there, and nothing of its command line, which may hold a password."""
    assert not any(line.startswith("process") for line in doctor())

    with Running(sys.executable, "-c", "import time; print('ready', flush=True); time.sleep(30)", "s3cret") as program:
        program.wait_for_line("ready")
        pid = program.process.pid
        said = doctor(OTEL_PYTHON_SYSMETRICS_PID=str(pid))
    assert [line.split() for line in said if line.startswith("process")] == [
        ["process", str(pid), *["here", "1", "thread"]]
    ]
    assert "s3cret" not in " ".join(said)

    said = doctor(OTEL_PYTHON_SYSMETRICS_PID=str(pid))
    (line,) = [line for line in said if line.startswith("process")]
    assert line.startswith(f"process {pid}  not here  ")


def test_a_mistyped_variable_is_named() -> None:
    """It has no effect, and nobody else would say so."""
    said = doctor(OTEL_PYTHON_SYSMETRICS_SAMPLING_INTERVALL="5", OTEL_PYTHON_SYSMETRICS_PIDS="7")
    (first, second) = [line for line in said if line.startswith("OTEL_PYTHON_SYSMETRICS_")]
    assert first.startswith("OTEL_PYTHON_SYSMETRICS_PIDS is ")
    assert second.startswith("OTEL_PYTHON_SYSMETRICS_SAMPLING_INTERVALL is ")


def test_where_it_is_exported_to_is_said_and_no_secret() -> None:
    """Scheme, host and port are enough to find a mistake; user, path and query may be secret."""
    (line,) = [
        line
        for line in doctor(OTEL_EXPORTER_OTLP_ENDPOINT="https://user:s3cret@otlp.example:4318/tenant/s3cret?key=s3cret")
        if line.startswith("export to ")
    ]
    assert line.startswith("export to https://otlp.example:4318 over http/protobuf, ")
    assert "s3cret" not in line


def test_intervals_that_hold_are_printed() -> None:
    """Our own interval, and the SDK's where opentelemetry-instrument makes the provider."""
    plain = doctor()
    assert "sampling every 15 s" in plain
    assert "export to http://localhost:4318 over http/protobuf, every 15 s by `run`, `exec` and `configure()`" in plain
    assert any(line.startswith("export under opentelemetry-instrument every 60 s") for line in plain)

    chosen = doctor(OTEL_METRIC_EXPORT_INTERVAL="5000", OTEL_EXPORTER_OTLP_PROTOCOL="grpc")
    assert "export to http://localhost:4317 over grpc, every 5 s by `run`, `exec` and `configure()`" in chosen
    assert any(line.startswith("export under opentelemetry-instrument every 5 s") for line in chosen)


def test_switched_off_is_said() -> None:
    """Who looks for missing metrics learns that they are switched off."""
    assert "switched off: OTEL_PYTHON_SYSMETRICS_DISABLED is true" in doctor(OTEL_PYTHON_SYSMETRICS_DISABLED="true")
