"""Fixtures that several test modules share."""

import os
from collections.abc import Collection, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NoReturn, Protocol

import pytest
from hypothesis import settings

from tests import prometheus
from tests.nvml import H100, Device, NvmlMachine, why_not
from tests.otelcol import Otelcol, find_binary

STARTED = pytest.StashKey[list[Otelcol]]()
# Modules that start many processes at once and look at the time: nothing else runs beside them.
CROWDED: Final = {
    "test_cases_138_to_147",
    "test_children",
    "test_end_to_end",
    "test_exit",
    "test_export",
    "test_faults",
    "test_fork",
    "test_launchers",
    "test_many_processes",
    "test_storm",
}


class StartOtelcol(Protocol):
    """Starts an otelcol that lives as long as the test; see `Otelcol` for the arguments."""

    def __call__(
        self,
        *configs: Mapping[str, Any] | str,
        prometheus: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> Otelcol:
        """Return it running."""


class MakeMachine(Protocol):
    """Makes a machine with NVIDIA GPUs, one healthy H100 where none is named; see `NvmlMachine` for the rest."""

    def __call__(self, *devices: Device, driver: str = "580.95.05", missing: Collection[str] = ()) -> NvmlMachine:
        """Return it."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of crowded modules: those that `pytest -m crowded` runs."""
    for item in items:
        if item.path.stem in CROWDED:
            item.add_marker(pytest.mark.crowded)


@pytest.fixture(autouse=True)
def own_locks(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test a folder of its own for the locks by which processes agree who reports the host."""
    folder = tmp_path_factory.mktemp("runtime")
    folder.chmod(0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))


@pytest.fixture(scope="session")
def nvml_builds() -> None:
    """Skip where the NVML stand-in cannot be built; fail where builds are required."""
    if missing := why_not():
        _without(missing)


@pytest.fixture
def machine(nvml_builds: None, tmp_path_factory: pytest.TempPathFactory) -> MakeMachine:  # noqa: ARG001 - it may skip
    """Return a function that makes a machine with NVIDIA GPUs."""

    def make(*devices: Device, driver: str = "580.95.05", missing: Collection[str] = ()) -> NvmlMachine:
        folder = tmp_path_factory.mktemp("nvml")
        return NvmlMachine(folder, devices=devices or (H100,), driver=driver, missing=missing)

    return make


@pytest.fixture(scope="session")
def otelcol_binary() -> str:
    """Return the path of otelcol, or skip; fail where builds are required."""
    return find_binary() or _without("there is no otelcol; build it with: make otelcol")


@pytest.fixture(scope="session")
def prometheus_binary() -> str:
    """Return the path of Prometheus, or skip; fail where builds are required."""
    return prometheus.find_binary() or _without("there is no Prometheus; build it with: make prometheus")


@pytest.fixture(scope="session")
def promtool_binary() -> str:
    """Return the path of promtool, or skip; fail where builds are required."""
    return prometheus.find_binary("promtool") or _without("there is no promtool; build it with: make prometheus")


def _without(missing: str) -> NoReturn:
    if os.environ.get("REQUIRE_BUILDS") == "1":
        pytest.fail(f"{missing} (REQUIRE_BUILDS=1 forbids to skip)", pytrace=False)
    pytest.skip(missing)


@pytest.fixture
def otelcol(otelcol_binary: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[StartOtelcol]:
    """Return a function that starts the real otelcol."""
    started = request.node.stash.setdefault(STARTED, [])

    def start(
        *configs: Mapping[str, Any] | str,
        prometheus: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> Otelcol:
        folder = os.path.join(tmp_path, f"otelcol-{len(started)}")
        backend = Otelcol(otelcol_binary, folder, *configs, prometheus=prometheus, environment=environment)
        started.append(backend)
        backend.start()
        return backend

    yield start
    for backend in started:
        backend.stop()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what otelcol logged beside a test that failed."""
    report = yield
    if report.failed:
        report.sections += [("otelcol's log", backend.log()) for backend in item.stash.get(STARTED, [])]
    return report


# How long one example takes says more of how busy the machine is than of the code.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
