"""Joins settings, sampler and instruments to a MeterProvider, once per process and again in a forked child."""

from __future__ import annotations

import atexit
import logging
import os
import socket
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import metrics
from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined] # not typed
from opentelemetry.instrumentation.utils import suppress_instrumentation
from opentelemetry.metrics import NoOpMeter

from otel_sysmetrics.election import Election, child_reports, seat_name
from otel_sysmetrics.instruments import METER, Instruments, forget_all, is_proxy
from otel_sysmetrics.sampler import Sampler
from otel_sysmetrics.selection import Selection
from otel_sysmetrics.settings import Settings, SettingsError, has_service_name, rank_attributes
from otel_sysmetrics.sources.files import Files
from otel_sysmetrics.sources.processes import WatchedProcess
from otel_sysmetrics.threads import FIRST_GAPS, Clock, Lanes, MonotonicClock
from otel_sysmetrics.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from opentelemetry.metrics import MeterProvider

    from otel_sysmetrics.reading import AttributeValue

_log: Final = logging.getLogger("otel_sysmetrics")

INSTANCE_ID: Final = "service.instance.id"
LAST_SAMPLE_SECONDS: Final = 0.5


class Attachment:
    """One provider's sampler and instruments in this process.

    `own` says that the provider is ours: its Resource then tells processes apart, and whoever made it makes a new one
    in a forked child. Under anybody else's the child's sampling starts at its first callback.
    `watch` gives the watched pid whenever it is asked; `tree` and `ended` are for `exec`.
    """

    def __init__(  # noqa: PLR0913 - each is a seam of its own
        self,
        provider: MeterProvider,
        settings: Settings,
        *,
        own: bool = False,
        watch: Callable[[], int | None] | None = None,
        tree: bool = False,
        ended: Callable[[], bool] = lambda: False,
        clock: Clock | None = None,
        lanes: Lanes | None = None,
        first_gaps: Sequence[float] = FIRST_GAPS,
    ) -> None:
        self.settings = settings
        self.own = own
        self._first_gaps = first_gaps
        self._provider = weakref.ref(provider)
        self._watch = watch or _own_pid(settings)
        self._tree = tree or settings.track_process_tree
        self._ended = ended
        self._clock = clock or MonotonicClock()
        self._instance = _resource(provider).get(INSTANCE_ID)
        self._forked = False
        self._make(provider, lanes or Lanes(), late=is_proxy(provider))

    def _make(self, provider: MeterProvider, lanes: Lanes, *, late: bool) -> None:
        """Make sampler and instruments; a `late` sampler starts when the first reader asks."""
        self._late = late
        self._pid = os.getpid()
        self.instruments = Instruments(
            provider,
            Selection(self.settings.metrics_included, self.settings.metrics_excluded),
            interval=self.settings.sampling_interval,
            clock=self._clock.now,
            attributes=self._attributes,
            healths=lambda: self.sampler.healths,
            on_ask=self._start_sampling if late else None,
        )
        self.sampler = Sampler(
            self.settings,
            WatchedProcess(Files(self.settings.root_path), self._watch, tree=self._tree, clock=self._clock.now),
            self.instruments.publish,
            lanes=lanes,
            clock=self._clock,
            within=suppress_instrumentation,
            ended=self._ended,
            first_gaps=self._first_gaps,
            election=self._election(provider, late=late),
            reports=partial(child_reports, self.settings.children),
        )

    def _election(self, provider: MeterProvider, *, late: bool) -> Election | None:
        if self.settings.host_metrics != "auto":
            return None
        instruments, expected = self.instruments, not late and _has_reader(provider)
        return Election(self._seat, self._clock.now, lambda: instruments.asks, expected=expected)

    def _seat(self) -> str:
        """Return what this process has in common with those that report the same host for the same job."""
        resource = _resource(self._reporting_provider())
        name = str(resource.get("service.name", ""))
        named = has_service_name() or not (self.own or name.startswith("unknown_service"))
        boot_id = Files(self.settings.root_path).text("proc/sys/kernel/random/boot_id") or ""
        return seat_name(self.settings, resource, boot_id, socket.gethostname(), named=named)

    def start(self) -> None:
        """Let the instruments serve and the threads run."""
        # Registered now and not at import: what is registered last runs first, before the provider's last flush.
        atexit.register(self.finish)
        self.instruments.attach()
        if not self._late:
            self.sampler.start()

    def _start_sampling(self) -> None:
        self.sampler.start()

    def finish(self) -> None:
        """Take one last sample, waiting half a second at most, and let it be served; does nothing in a forked child."""
        if os.getpid() != self._pid:
            return
        self.sampler.finish(LAST_SAMPLE_SECONDS)
        self.sampler.close()

    def stop(self) -> None:
        """Silence the instruments and end the threads, waiting for none."""
        atexit.unregister(self.finish)
        self.sampler.stop()
        self.instruments.detach()

    def after_fork(self, lanes: Lanes) -> None:
        """Forget the parent's threads in a child, and wait there to be asked."""
        provider = self._provider()
        if provider is None or self.settings.children == "never":
            return
        self._forked = True
        self._make(provider, lanes, late=True)
        self.instruments.attach(create=False)

    def _attributes(self) -> Mapping[str, AttributeValue]:
        ranks = rank_attributes() if self.settings.rank_attributes else {}
        return {**self._identity(), **ranks, **self.settings.attributes}

    def _identity(self) -> dict[str, AttributeValue]:
        """Return what tells this process's streams from another's where the Resource does not.

        An instance id that is missing, given by the environment (which children inherit) or unchanged since before a
        fork belongs to no single process.
        """
        if self.own:
            return {}
        before, self._instance = self._instance, _resource(self._reporting_provider()).get(INSTANCE_ID)
        inherited = self._forked and before in {None, self._instance}
        if self._instance and not inherited and self._instance != _configured_instance_id():
            return {}
        return {"host.name": socket.gethostname(), "process.pid": os.getpid()}

    def _reporting_provider(self) -> object:
        provider = self._provider()
        return metrics.get_meter_provider() if provider is None or is_proxy(provider) else provider


class SysMetricsInstrumentor(BaseInstrumentor):  # type: ignore[misc] # untyped in older releases
    """Reports hardware metrics on a MeterProvider, as one of OpenTelemetry's instrumentations.

    `instrument()` takes `meter_provider` and every field of Settings as a keyword, or ready `settings`. It never
    raises and never waits: what is wrong is logged once, as an error that names it.
    """

    attachment: Attachment | None = None
    _lanes: Lanes | None = None
    _on_stop: Callable[[], None] | None = None

    def instrumentation_dependencies(self) -> Collection[str]:
        """Return nothing: hardware is looked for where the program runs."""
        return ()

    def _instrument(self, **kwargs: Any) -> None:  # noqa: ANN401 - the signature is OpenTelemetry's
        try:
            self._attach(**kwargs)
        except BaseException as error:  # noqa: BLE001 - anything raised here would stop all other instrumentations
            _log.error("otel-sysmetrics is off: %s: %s", type(error).__name__, error)

    def _attach(
        self,
        *,
        meter_provider: MeterProvider | None = None,
        settings: Settings | None = None,
        on_stop: Callable[[], None] | None = None,
        **keywords: object,
    ) -> None:
        """Start reporting; `on_stop` comes from the maker of a provider of ours, who has to hear of the end."""
        settings = settings or Settings.load(keywords, report=_report)
        if settings.disabled:
            return
        provider = meter_provider or metrics.get_meter_provider()
        if isinstance(provider.get_meter(METER, __version__), NoOpMeter):
            return
        self._lanes = self._lanes or Lanes()
        self._on_stop = on_stop
        self.attachment = Attachment(provider, settings, own=on_stop is not None, lanes=self._lanes)
        self.attachment.start()

    def _uninstrument(self, **_kwargs: Any) -> None:  # noqa: ANN401 - the signature is OpenTelemetry's
        if self._on_stop is not None:
            self._on_stop()
        attachment, self.attachment = self.attachment, None
        if attachment is not None:
            attachment.stop()

    def report_on(self, provider: MeterProvider, settings: Settings, on_stop: Callable[[], None]) -> Attachment | None:
        """Report on a provider of ours in place of another, or in a forked child on the one that was made for it."""
        chosen = {"meter_provider": provider, "settings": settings, "on_stop": on_stop}
        if self.is_instrumented_by_opentelemetry and self.attachment is None and self._on_stop == on_stop:
            self._instrument(**chosen)
            return self.attachment
        if self.is_instrumented_by_opentelemetry:
            self.uninstrument()
        self.instrument(**chosen)
        return self.attachment

    def after_fork(self) -> None:
        """Begin anew in a forked child: no thread of the parent lives here, and its locks may be held for ever.

        Where the maker of our own provider is about to make another one, `uninstrument()` prevents it already.
        """
        self._lanes = Lanes()
        attachment = self.attachment
        if attachment is None:
            return
        if attachment.own:
            self.attachment = None
            self._is_instrumented_by_opentelemetry = attachment.settings.children != "never"
        else:
            attachment.after_fork(self._lanes)


def _own_pid(settings: Settings) -> Callable[[], int | None]:
    """Return how the watched pid is asked: an application watches itself, also after a fork.

    Below another root our own pid means nothing: it belongs to another namespace.
    """
    if settings.pid is not None or settings.root_path != "/":
        return lambda: settings.pid
    return os.getpid


def _report(error: SettingsError) -> None:
    _log.error("otel-sysmetrics: %s", error)


def _resource(provider: object) -> Mapping[str, object]:
    resource = getattr(getattr(provider, "_sdk_config", None), "resource", None)
    found: Mapping[str, object] = getattr(resource, "attributes", {})
    return found


def _has_reader(provider: MeterProvider) -> bool:
    """Tell whether anybody is going to ask; of a provider that is not the SDK's that is not known."""
    of_older_releases = getattr(getattr(provider, "_sdk_config", None), "metric_readers", True)
    return bool(getattr(provider, "_metric_readers", of_older_releases))


def _configured_instance_id() -> object:
    from opentelemetry.sdk.resources import OTELResourceDetector

    return OTELResourceDetector().detect().attributes.get(INSTANCE_ID)


def _after_fork_in_child() -> None:
    forget_all()
    SysMetricsInstrumentor().after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
