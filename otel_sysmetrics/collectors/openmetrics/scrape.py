"""One scrape of an endpoint: fetched, tried again where that may help, read, and what it cost said once."""

from __future__ import annotations

import codecs
import logging
import time
from typing import TYPE_CHECKING, Final, TypeVar

from otel_sysmetrics.collector import Unavailable
from otel_sysmetrics.collectors.openmetrics.exposition import Exposition, NotMetrics
from otel_sysmetrics.sources.http import FetchError, fetch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from otel_sysmetrics.collectors.openmetrics.exposition import Keeps
    from otel_sysmetrics.endpoints import Endpoint

_T = TypeVar("_T")

_log: Final = logging.getLogger("otel_sysmetrics")

_ATTEMPTS: Final = 3
_LONGEST_WAIT: Final = 1.0


def fetched(endpoint: Endpoint, headers: Mapping[str, str], within: float, read: Callable[[Iterable[bytes]], _T]) -> _T:
    """Return what `read` makes of an endpoint's answer; raises Unavailable.

    No attempt begins after `within` seconds, and all are over then or, where that is longer, after the time-out of one:
    an endpoint may be slower than the interval. `read` begins anew in each, since one may be cut short.
    """
    import tenacity

    end = time.monotonic() + max(within, endpoint.timeout)
    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception(lambda error: isinstance(error, FetchError) and error.passing),
        stop=tenacity.stop_after_attempt(_ATTEMPTS) | tenacity.stop_after_delay(max(within - _LONGEST_WAIT, 0)),
        wait=tenacity.wait_random_exponential(multiplier=0.1, max=_LONGEST_WAIT),
        reraise=True,
    )

    def attempt() -> _T:
        return read(fetch(endpoint, headers, min(endpoint.timeout, end - time.monotonic())))

    try:
        return retrying(attempt)
    except (FetchError, NotMetrics) as error:
        raise Unavailable(str(error) if isinstance(error, FetchError) else f"it answers with {error}") from None


def read_text(keeps: Keeps, limit: int, pieces: Iterable[bytes]) -> Exposition:
    """Read an answer as text, with a replacement character for each byte that is no UTF-8; raises NotMetrics."""
    exposition = Exposition(keeps, limit)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for piece in pieces:
        exposition.feed(decoder.decode(piece))
    exposition.feed(decoder.decode(b"", final=True))
    exposition.end()
    return exposition


class Losses:
    """Says once that lines cannot be read, and once that there are too many series."""

    def __init__(self, lane: str) -> None:
        self._lane = lane
        self._said: set[str] = set()

    def say(self, exposition: Exposition, limit: int) -> None:
        """Say what a scrape lost, where that was not said yet."""
        self._once("bad", exposition.bad, "lines cannot be read and are left out")
        self._once("dropped", exposition.dropped, f"series are over the limit of {limit} and are left out")

    def _once(self, what: str, count: int, words: str) -> None:
        if count and what not in self._said:
            self._said.add(what)
            _log.warning("otel-sysmetrics: %s: %d %s", self._lane, count, words)
