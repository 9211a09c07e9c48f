"""Bounded fetches over HTTP: the whole of a request has a deadline, and the whole of an answer a size.

Nothing secret leaves: an error shows no address, header or body, and a redirect to another origin gets no credentials.
"""

from __future__ import annotations

import base64
import http.client
import ipaddress
import os
import socket
import ssl
import zlib
from functools import lru_cache, partial
from typing import IO, TYPE_CHECKING, Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import unquote, urljoin, urlsplit, urlunsplit
from urllib.request import (
    AbstractHTTPHandler,
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    HTTPRedirectHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
)

from otel_sysmetrics.sources.deadline import Connection, Deadline, SecureConnection
from otel_sysmetrics.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from otel_sysmetrics.endpoints import Endpoint

CHUNK: Final = 65_536
_GZIP: Final = 31  # zlib's word for a gzip header and trailer
_PASSING: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
_SCHEMES: Final = frozenset({"http", "https"})
_MOST_REDIRECTS: Final = 5
_MOST_TOKEN: Final = 65_536
# Old servers answer 406 to what does not name their own type literally.
_ACCEPT: Final = "text/plain;version=0.0.4;q=1,application/openmetrics-text;version=1.0.0;q=0.5,*/*;q=0.1"


class FetchError(Exception):
    """Nothing was fetched, or not all of it; `passing` tells that another attempt may help."""

    def __init__(self, reason: str, *, passing: bool = False) -> None:
        super().__init__(reason)
        self.passing = passing


def fetch(endpoint: Endpoint, headers: Mapping[str, str], seconds: float) -> Iterator[bytes]:
    """Yield what an endpoint answers, unpacked, in pieces of at most 64 KiB; raises FetchError.

    `headers` are sent beside the endpoint's own. `seconds` is for all of it, however slowly the answer drips, and for
    what the reader makes of it between two pieces. What was yielded before an error is not the whole.
    """
    deadline = Deadline(seconds)
    try:
        with _open(endpoint, headers, deadline) as response:
            yield from _bounded(_pieces(response), endpoint.body_limit, deadline)
    except FetchError:
        raise
    except Exception as error:  # noqa: BLE001 - a server can bring the standard library to many exceptions
        raise _told(error, seconds) from None


class _Opens(AbstractHTTPHandler):
    """Opens connections that keep to the deadline."""

    http_request = AbstractHTTPHandler.do_request_
    https_request = AbstractHTTPHandler.do_request_

    def __init__(self, deadline: Deadline, ca_file: str | None) -> None:
        super().__init__()
        self._deadline = deadline
        self._ca_file = ca_file

    def http_open(self, request: Request) -> http.client.HTTPResponse:
        return self.do_open(partial(Connection, deadline=self._deadline), request)

    def https_open(self, request: Request) -> http.client.HTTPResponse:
        context = _tls(self._ca_file, _changed(self._ca_file))
        return self.do_open(partial(SecureConnection, deadline=self._deadline), request, context=context)


class _Redirects(HTTPRedirectHandler):
    """Follows a few redirects, with credentials only to where they belong."""

    max_redirections = _MOST_REDIRECTS

    def __init__(self, url: str, secrets: Mapping[str, str]) -> None:
        self._origin = _origin(url)
        self._secrets = secrets

    def redirect_request(self, request: Request, *about: Any) -> Request | None:  # noqa: ANN401 - urllib's own
        target = super().redirect_request(request, *about)
        if target is None:
            return None
        url, given = _without_user(target.full_url)
        own = self._secrets if _origin(url) == self._origin else {}
        return Request(url, headers={**_common(), **given, **own})  # noqa: S310 - to HTTP only, see above

    def http_error_302(
        self,
        req: Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
    ) -> Any:  # noqa: ANN401 - urllib's own
        """Follow to HTTP; what urllib would refuse or leave looks to its caller as if there were too many."""
        if not _leads_to_http(req.full_url, headers.get("Location")):
            fp.close()
            raise FetchError("a redirect to what is no address of HTTP")
        return super().http_error_302(req, fp, code, msg, headers)

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


class _Proxies(ProxyHandler):
    """The proxies that the environment names, but never for this machine itself."""

    def proxy_open(self, request: Request, proxy: str, type: str) -> Any:  # noqa: A002, ANN401 - urllib's own
        if _loopback(urlsplit(request.full_url).hostname or ""):
            return None
        return super().proxy_open(request, proxy, type)


def _open(endpoint: Endpoint, headers: Mapping[str, str], deadline: Deadline) -> http.client.HTTPResponse:
    url, secrets = _without_user(endpoint.url)
    secrets |= {**headers, **endpoint.headers}
    if endpoint.bearer_token_file is not None:
        secrets["Authorization"] = f"Bearer {_token(endpoint.bearer_token_file)}"
    opener = OpenerDirector()
    opener.addheaders = []
    for handler in (
        _Proxies(),
        _Opens(deadline, endpoint.ca_file),
        HTTPDefaultErrorHandler(),
        _Redirects(url, secrets),
        HTTPErrorProcessor(),
    ):
        opener.add_handler(handler)
    request = Request(url, headers={**_common(), **secrets})  # noqa: S310 - the settings admit HTTP only
    response: http.client.HTTPResponse = opener.open(request, timeout=deadline.left())
    return response


def _common() -> dict[str, str]:
    return {"Accept": _ACCEPT, "Accept-Encoding": "gzip", "User-Agent": f"otel-sysmetrics/{__version__}"}


def _pieces(response: http.client.HTTPResponse) -> Iterator[bytes]:
    """Yield an answer's bytes, unpacked; raises FetchError where the answer is cut short."""
    encoding = (response.headers.get("Content-Encoding") or "identity").strip().lower()
    if encoding not in {"identity", "gzip", "x-gzip"}:
        raise FetchError("an encoding that nobody asked for")
    raw = _raw(response)
    yield from raw if encoding == "identity" else _unpacked(raw)


def _raw(response: http.client.HTTPResponse) -> Iterator[bytes]:
    while piece := response.read1(CHUNK):
        yield piece
    if response.length:
        raise FetchError("an answer that is cut short", passing=True)


def _unpacked(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Unpack gzip, each of its members, in small steps: one megabyte can unpack to one gigabyte."""
    unpacker = zlib.decompressobj(_GZIP)
    for piece in pieces:
        rest = piece
        while rest:
            if unpacker.eof:
                unpacker = zlib.decompressobj(_GZIP)
            if unpacked := unpacker.decompress(rest, CHUNK):
                yield unpacked
            rest = unpacker.unconsumed_tail or unpacker.unused_data
    while not unpacker.eof and (unpacked := unpacker.decompress(b"", CHUNK)):
        yield unpacked
    if not unpacker.eof:
        raise FetchError("an answer that is cut short", passing=True)


def _bounded(pieces: Iterator[bytes], limit: int, deadline: Deadline) -> Iterator[bytes]:
    size = 0
    for piece in pieces:
        size += len(piece)
        if size > limit:
            raise FetchError(f"an answer of more than {limit} bytes")
        deadline.left()  # what has arrived is not free: 60 MB of gzip are half a minute of lines
        yield piece


def _token(path: str) -> str:
    """Read a token; its file is read each time, since tokens expire and are replaced."""
    try:
        with open(path, encoding="ascii") as file:
            token = file.read(_MOST_TOKEN).strip()
    except (OSError, UnicodeError):
        raise FetchError("bearer_token_file cannot be read") from None
    if not token or not token.isprintable() or " " in token:
        raise FetchError("bearer_token_file holds no token")
    return token


def _without_user(url: str) -> tuple[str, dict[str, str]]:
    """Take user and password out of an address, as the header that they become."""
    parsed = urlsplit(url)
    user, found, host = parsed.netloc.rpartition("@")
    plain = urlunsplit((parsed.scheme, host, parsed.path or "/", parsed.query, ""))
    if not found:
        return plain, {}
    name, _, password = user.partition(":")
    word = base64.b64encode(f"{unquote(name)}:{unquote(password)}".encode()).decode()
    return plain, {"Authorization": f"Basic {word}"}


def _origin(url: str) -> tuple[str, str | None, int]:
    parsed = urlsplit(url)
    return parsed.scheme, parsed.hostname, parsed.port or (443 if parsed.scheme == "https" else 80)


def _leads_to_http(url: str, location: str | None) -> bool:
    try:
        target = urlsplit(urljoin(url, location or ""))
        return bool(location and target.hostname and target.hostname.encode("idna")) and target.scheme in _SCHEMES
    except ValueError:
        return False


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


@lru_cache(maxsize=64)
def _tls(ca_file: str | None, _changed: float) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError):
        raise FetchError("ca_file cannot be read") from None


def _changed(path: str | None) -> float:
    try:
        return os.stat(path).st_mtime if path is not None else 0.0
    except OSError:
        return -1.0


def _told(error: BaseException, seconds: float) -> FetchError:
    """Say what went wrong without any word of the server's."""
    if isinstance(error, URLError) and isinstance(error.reason, BaseException):
        return _told(error.reason, seconds)
    if isinstance(error, FetchError):
        return error
    if isinstance(error, HTTPError):
        return _refused(error)
    for kind, words in _WORDS:
        if isinstance(error, kind):
            text = words(error).replace("{seconds:g}", f"{round(seconds, 2):g}")
            return FetchError(text, passing=kind in _PASSING_ERRORS)
    return FetchError(f"an answer that cannot be understood: {type(error).__name__}")


def _refused(error: HTTPError) -> FetchError:
    error.close()
    redirected = error.code in {301, 302, 303, 307, 308}
    return FetchError("too many redirects" if redirected else f"HTTP {error.code}", passing=error.code in _PASSING)


_WORDS: Final[tuple[tuple[type[BaseException], Callable[[Any], str]], ...]] = (
    (TimeoutError, lambda _: "no whole answer within {seconds:g} s"),
    (ssl.SSLCertVerificationError, lambda error: f"certificate: {error.verify_message}"),
    (socket.gaierror, lambda _: "its host name is not known"),
    (OSError, lambda error: error.strerror or type(error).__name__),
    (http.client.HTTPException, lambda error: f"not HTTP: {type(error).__name__}"),
    (zlib.error, lambda _: "what it sends is no gzip"),
)
_PASSING_ERRORS: Final = frozenset({socket.gaierror, OSError, http.client.HTTPException})
