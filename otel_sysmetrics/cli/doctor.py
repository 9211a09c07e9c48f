"""`otel-sysmetrics doctor`: what is here, what is not, and why."""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

import click

from otel_sysmetrics.cli.options import Seconds
from otel_sysmetrics.collector import NotHere
from otel_sysmetrics.otlp import export_interval, otlp_endpoint, otlp_protocol
from otel_sysmetrics.settings import Settings, unknown_variables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from otel_sysmetrics.collector import Part
    from otel_sysmetrics.sources.processes import WatchedProcess

TIMEOUT: Final = 10.0


class Examination:
    """What a look at something brings to light, taken in a thread of its own, since a driver may hang."""

    def __init__(self, name: str, look: Callable[[], str]) -> None:
        self.name = name
        self._look = look
        self._done = threading.Event()
        self._found = ("", "")
        threading.Thread(target=self._run, daemon=True).start()

    def result(self, timeout: float) -> tuple[str, str]:
        """Return the state and what there is to say about it."""
        return self._found if self._done.wait(timeout) else ("ill", f"did not answer within {timeout:g} s")

    def _run(self) -> None:
        from otel_sysmetrics.runner import said

        try:
            self._found = ("here", self._look())
        except NotHere as error:
            self._found = ("not here", said(error))
        except BaseException as error:  # noqa: BLE001 - a vendor library may raise anything, and to say so is the purpose
            self._found = ("ill", said(error))
        self._done.set()


@click.command("doctor")
@click.option(
    "--timeout",
    type=Seconds(0.1),
    default=TIMEOUT,
    show_default=True,
    help="Seconds to wait for a collector that does not answer.",
)
def command(timeout: float) -> None:
    """Say what hardware is here, what is not, and why.

    Example: otel-sysmetrics doctor
    """
    from otel_sysmetrics.cli.render import print_table

    settings = Settings.load()
    says = tuple(_configuration(settings))
    rows = []
    for examination in tuple(_examinations(settings)):
        state, what = examination.result(timeout)
        first, *others = what.split("; ") if state == "here" else [what]
        rows.append(((examination.name, state), first.split()))
        rows += [(("", ""), other.split()) for other in others]  # a GPU, a chip: a row of its own
    print_table(("collector", "state", "what"), rows)
    click.echo("\n".join(says))


def _configuration(settings: Settings) -> Iterator[str]:
    """Yield what the environment says, in lines; raises SettingsError."""
    interval, theirs = export_interval(settings.sampling_interval), export_interval(60)
    if settings.disabled:
        yield "switched off: OTEL_PYTHON_SYSMETRICS_DISABLED is true"
    for variable in unknown_variables():
        yield f"{variable} is no variable of ours and has no effect"
    yield f"sampling every {settings.sampling_interval:g} s"
    yield (
        f"export to {otlp_endpoint()} over {otlp_protocol()}, every {interval:g} s by `run`, `exec` and `configure()`"
    )
    yield f"export under opentelemetry-instrument every {theirs:g} s (OTEL_METRIC_EXPORT_INTERVAL)"


def _examinations(settings: Settings) -> Iterator[Examination]:
    """Begin to look at every part of the chosen kinds, and at the watched process."""
    from otel_sysmetrics.sampler import Sampler
    from otel_sysmetrics.sources.files import Files
    from otel_sysmetrics.sources.processes import WatchedProcess
    from otel_sysmetrics.threads import MonotonicClock

    clock = MonotonicClock()
    watched = WatchedProcess(Files(settings.root_path), lambda: settings.pid, tree=False, clock=clock.now)
    whole = replace(settings, host_metrics="always")  # whoever reports it
    for runner in Sampler(whole, watched, lambda _health, _snapshot: None, clock=clock).runners():
        yield Examination(runner.lane, partial(_look_at_part, runner.part))
    if settings.pid is not None:
        yield Examination(f"process {settings.pid}", partial(_look_at_process, watched))


def _look_at_part(part: Part) -> str:
    collector = part.probe()
    tuple(collector.sample())
    what = collector.describe()
    collector.close()
    return what


def _look_at_process(watched: WatchedProcess) -> str:
    """Count its threads; what its command line says is nobody's business."""
    processes = watched.processes()
    if not processes:
        raise NotHere("there is no such process")
    threads = processes[0].threads
    return "" if threads is None else f"{threads} thread{'s' * (threads != 1)}"
