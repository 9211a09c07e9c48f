"""`otel-sysmetrics doctor`: what is here, what is not, and why."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

import click

from otel_sysmetrics.collector import NotHere
from otel_sysmetrics.settings import Settings, export_interval, otlp_protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

    from otel_sysmetrics.runner import Runner

TIMEOUT: Final = 10.0


@click.command("doctor")
@click.option("--timeout", type=click.FloatRange(min=0.1), default=TIMEOUT, show_default=True)
def command(timeout: float) -> None:
    """Say for each kind of hardware whether it is here and well, and what can be done.

    Example: otel-sysmetrics doctor
    """
    from otel_sysmetrics.cli.render import print_table

    settings = Settings.load()
    protocol, interval = otlp_protocol(), export_interval(settings.sampling_interval)
    rows = []
    for runner, done, found in _examine(settings):
        state, what = found if done.wait(timeout) else ("ill", f"did not answer within {timeout:g} s")
        rows.append((runner.lane, state, what))
    print_table(("collector", "state", "what"), rows)
    if settings.disabled:
        click.echo("switched off: OTEL_PYTHON_SYSMETRICS_DISABLED is true")
    click.echo(f"sampling every {settings.sampling_interval:g} s")
    click.echo(f"export over {protocol}, every {interval:g} s by `run`, `exec` and `configure()`")
    click.echo(f"export under opentelemetry-instrument every {export_interval(60):g} s (OTEL_METRIC_EXPORT_INTERVAL)")


def _examine(settings: Settings) -> Iterable[tuple[Runner, threading.Event, list[str]]]:
    """Look at every part in a thread of its own, since a driver may hang, and yield each with what is found."""
    from otel_sysmetrics.sampler import Sampler
    from otel_sysmetrics.sources.files import Files
    from otel_sysmetrics.sources.processes import WatchedProcess
    from otel_sysmetrics.threads import MonotonicClock

    clock = MonotonicClock()
    watched = WatchedProcess(Files(settings.root_path), lambda: settings.pid, tree=False, clock=clock.now)
    sampler = Sampler(settings, watched, lambda _health, _snapshot: None, clock=clock)
    examined = []
    for runner in sampler.runners():
        done, found = threading.Event(), ["", ""]
        threading.Thread(target=_look, args=(runner, done, found), daemon=True).start()
        examined.append((runner, done, found))
    return examined


def _look(runner: Runner, done: threading.Event, found: list[str]) -> None:
    from otel_sysmetrics.runner import said

    try:
        collector = runner.part.probe()
        tuple(collector.sample())
        found[:] = ["here", collector.describe()]
        collector.close()
    except NotHere as error:
        found[:] = ["not here", said(error)]
    except BaseException as error:  # noqa: BLE001 - a vendor library may raise anything, and to say so is the purpose
        found[:] = ["ill", said(error)]
    done.set()
