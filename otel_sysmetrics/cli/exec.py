"""`otel-sysmetrics exec -- CMD…`: watches the process tree of a command."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Final

import click

from otel_sysmetrics.cli.run import EXPORTERS, start
from otel_sysmetrics.settings import Settings
from otel_sysmetrics.sources.command import FORWARDED, Child, terminal_signals_reach_children

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics import MeterProvider

    from otel_sysmetrics.export import Reporting

NOT_FOUND: Final = 127
NOT_STARTED: Final = 126
FIRST_SAMPLE_SECONDS: Final = 1.0


@click.command("exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--exporter", type=EXPORTERS, default="otlp", show_default=True)
@click.argument("arguments", nargs=-1, required=True, metavar="-- CMD...", type=click.UNPROCESSED)
def command(exporter: str, arguments: tuple[str, ...]) -> None:
    """Run a command, sample it and its host, and exit with the command's status.

    Example: otel-sysmetrics exec -- python train.py
    """
    settings = Settings.load()
    sys.exit(_run(settings, exporter, arguments))


def _run(settings: Settings, exporter: str, arguments: tuple[str, ...]) -> int:
    from otel_sysmetrics.export import Pipeline
    from otel_sysmetrics.instrumentor import Attachment

    pipeline = Pipeline(settings, exporter=exporter, service_name=os.path.basename(arguments[0]))
    signals = Signals()
    try:
        child = Child(arguments)
    except OSError as error:
        pipeline.shutdown()
        click.echo(f"otel-sysmetrics: {arguments[0]}: {error.strerror}", err=True)
        return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_STARTED
    signals.pass_to(child)

    attachments: list[Attachment] = []

    def attach(provider: MeterProvider) -> Reporting:
        attachment = Attachment(provider, settings, own=True, watch=lambda: child.pid, tree=True, ended=child.ended)
        attachment.start()
        attachments.append(attachment)
        return attachment

    began = time.monotonic()
    start(pipeline, attach)
    status = child.wait()
    for attachment in attachments:  # a command may be over before anything was read
        attachment.sampler.settle(began + FIRST_SAMPLE_SECONDS - time.monotonic())
    pipeline.shutdown()
    return status


class Signals:
    """Passes signals on to the command; those that come before there is one are kept for it.

    A signal that is ignored stays so, for the command too: `nohup` ignores SIGHUP.
    """

    def __init__(self) -> None:
        self._child: Child | None = None
        self._kept: list[int] = []
        for number in FORWARDED:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, lambda number, _frame: self._take(number))

    def pass_to(self, child: Child) -> None:
        """Pass on what came and what comes."""
        self._child = child
        while self._kept:
            child.send(self._kept.pop(0))

    def _take(self, number: int) -> None:
        if self._child is None:
            self._kept.append(number)
        elif number not in {signal.SIGINT, signal.SIGQUIT} or not terminal_signals_reach_children():
            self._child.send(number)
