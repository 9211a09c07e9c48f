"""The door to the runtime's metric service: one gRPC call with a deadline."""

from __future__ import annotations

from typing import Any, Final

from otel_sysmetrics.collectors.tpu import wire
from otel_sysmetrics.importing import importing

_PATH: Final = "/tpu.monitoring.runtime.RuntimeMetricService/"
_SECONDS: Final = 2.0
_MOST_BYTES: Final = 4 * 2**20
# A proxy that the environment names is for the world outside (https://github.com/grpc/grpc/issues/9989).
_OPTIONS: Final = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", _MOST_BYTES),
)


class Down(Exception):
    """Nobody serves TPU metrics there; the argument says why."""


class Refused(Exception):
    """The service does not know a metric."""


class Service:
    """What serves metrics on a port, for the length of one sample.

    The channel is made anew each time: one that lives while the application forks makes gRPC hang or abort the child
    (https://github.com/grpc/grpc/blob/master/doc/fork_support.md).
    """

    def __init__(self, port: int) -> None:
        with importing():
            import grpc

        self._grpc: Any = grpc
        self._channel = grpc.insecure_channel(f"127.0.0.1:{port}", options=_OPTIONS)

    def supported(self) -> frozenset[str]:
        """Return the names of the metrics that are served; raises Down, or Refused where it cannot be asked."""
        return wire.supported(self._call("ListSupportedMetrics", b""))

    def values(self, name: str) -> dict[int, float]:
        """Return a metric by device; raises Down or Refused."""
        return wire.values(self._call("GetRuntimeMetric", wire.request(name)))

    def close(self) -> None:
        """Let go of the connection."""
        self._channel.close()

    def _call(self, method: str, message: bytes) -> bytes:
        call = self._channel.unary_unary(_PATH + method, request_serializer=None, response_deserializer=None)
        try:
            return bytes(call(message, timeout=_SECONDS))
        except self._grpc.RpcError as error:
            code = error.code()
            gone = (self._grpc.StatusCode.UNAVAILABLE, self._grpc.StatusCode.DEADLINE_EXCEEDED)
            raise (Down if code in gone else Refused)(code.name) from None
