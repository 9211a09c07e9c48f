"""The options of OpenTelemetry's declarative configuration are our settings."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("opentelemetry.configuration", reason="opentelemetry-configuration is not installed")

CONFIGURATION = """
file_format: "1.0"
meter_provider:
  readers:
    - periodic: {{interval: 400, exporter: {{console: {{}}}}}}
instrumentation/development:
  python:
    sysmetrics: {options}
"""
PROGRAM = "import time; time.sleep(1.5)"


def run(tmp_path: Path, options: object) -> subprocess.CompletedProcess[str]:
    """Run a program under auto-instrumentation with these options of ours."""
    path = tmp_path / "otel.yaml"
    path.write_text(CONFIGURATION.format(options=json.dumps(options)))
    instrument = os.path.join(os.path.dirname(sys.executable), "opentelemetry-instrument")
    return subprocess.run(
        [instrument, sys.executable, "-c", PROGRAM],
        env={**os.environ, "OTEL_CONFIG_FILE": str(path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )


def test_options_reach_the_settings_and_leave_the_environment_its_say(tmp_path: Path) -> None:
    """An option that is not given keeps its variable or default."""
    done = run(tmp_path, {"metrics_included": ["cpu.cpu_percent", "memory_percent"], "attributes": {"team": "vision"}})
    assert '"cpu.cpu_percent"' in done.stdout
    assert '"memory_percent"' in done.stdout
    assert '"team": "vision"' in done.stdout
    assert "disk./.usageGB" not in done.stdout


def test_a_wrong_option_is_one_error_and_the_rest_holds(tmp_path: Path) -> None:
    """The program runs, the error names option, value and what is expected."""
    done = run(tmp_path, {"sampling_interval": -5, "metrics_included": ["memory_percent"]})
    assert "sampling_interval=-5: expected a number of seconds" in done.stderr
    assert "Traceback" not in done.stderr
    assert '"memory_percent"' in done.stdout
