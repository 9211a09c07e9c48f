"""A stand-in for the TPU runtime's metric service: a real gRPC server with messages encoded by protobuf itself."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

if TYPE_CHECKING:
    from collections.abc import Mapping

PACKAGE: Final = "tpu.monitoring.runtime"
_KINDS: Final = {"string": 9, "bool": 8, "int64": 3, "double": 1, "message": 11, "bytes": 12}
# The fields of each message: name, number, kind, and whether it is repeated.
_MESSAGES: Final[Mapping[str, tuple[tuple[str, int, str, bool], ...]]] = {
    "MetricRequest": (("metric_name", 1, "string", False), ("skip_node_aggregation", 2, "bool", False)),
    "MetricResponse": (("metric", 1, "TPUMetric", False),),
    "TPUMetric": (("name", 1, "string", False), ("description", 2, "string", False), ("metrics", 3, "Metric", True)),
    "Metric": (("attribute", 1, "Attribute", False), ("gauge", 3, "Gauge", False), ("counter", 4, "Counter", False)),
    "Attribute": (("key", 1, "string", False), ("value", 2, "AttrValue", False)),
    "AttrValue": (
        ("string_attr", 1, "string", False),
        ("bool_attr", 2, "bool", False),
        ("int_attr", 3, "int64", False),
        ("kvlist_attr", 6, "KeyValueList", False),
    ),
    "KeyValueList": (("attributes", 1, "Attribute", True),),
    "Gauge": (("as_double", 1, "double", False), ("as_int", 2, "int64", False), ("as_string", 3, "string", False)),
    "Counter": (("as_double", 1, "double", False), ("as_int", 2, "int64", False)),
    "SupportedMetric": (("metric_name", 1, "string", False),),
    "ListSupportedMetricsResponse": (("supported_metric", 1, "SupportedMetric", True),),
}
_ONE_OF: Final = {"AttrValue", "Gauge", "Counter"}


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="tpu_stand_in.proto", package=PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        if name in _ONE_OF:
            message.oneof_decl.add(name="kind")
        for field, number, kind, repeated in fields:
            made = message.field.add(name=field, number=number, label=3 if repeated else 1)
            made.type = _KINDS.get(kind, 11)  # type: ignore[assignment]
            if kind in _MESSAGES:
                made.type_name = f".{PACKAGE}.{kind}"
            if name in _ONE_OF:
                made.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file) if hasattr(pool, "Add") else pool.AddSerializedFile(file.SerializeToString())
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in _MESSAGES
    }


MESSAGES: Final = _classes()


def response(name: str, rows: Mapping[int, float], *, key: str = "device-id", shape: str = "int") -> bytes:
    """Return a MetricResponse with one gauge per device, an int where the value is one.

    `shape` says how a row names its device: by an `int`, a `text`, or either in a list (`listed int`, `listed text`).
    """
    found = MESSAGES["MetricResponse"]()
    found.metric.name = name
    for device, value in rows.items():
        row = found.metric.metrics.add()
        attribute = row.attribute
        if shape.startswith("listed"):
            attribute.key = "attributes"
            entries = attribute.value.kvlist_attr.attributes
            core = entries.add(key="core_type")
            core.value.string_attr = "TENSOR_CORE"
            attribute = entries.add()
        attribute.key = key
        if shape.endswith("int"):
            attribute.value.int_attr = device
        else:
            attribute.value.string_attr = str(device)
        if isinstance(value, int):
            row.gauge.as_int = value
        else:
            row.gauge.as_double = value
    return bytes(found.SerializeToString())


class Runtime:
    """A workload's metric service; what it serves may change while it runs, and what `hangs` gets no answer.

    `age` is how many milliseconds a connection may live, 0 for ever.
    """

    def __init__(  # noqa: PLR0913 - what a test may choose
        self,
        served: Mapping[str, Mapping[int, float]],
        *,
        lists: bool = True,
        hangs: str = "",
        host: str = "127.0.0.1",
        port: int = 0,
        age: int = 0,
        **row: str,
    ) -> None:
        self.served = dict(served)
        self.calls: list[str] = []
        self._lists = lists
        self._hangs = hangs
        self._row = row
        self._over = threading.Event()
        ages = [("grpc.max_connection_age_ms", age), ("grpc.max_connection_age_grace_ms", 60_000)]
        self._server = grpc.server(ThreadPoolExecutor(2), options=ages if age else None)
        self._server.add_generic_rpc_handlers((self,))
        self.port = self._server.add_insecure_port(f"{host}:{port}")
        self._server.start()

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        """Find what answers a method; None is UNIMPLEMENTED."""
        name = str(details.method).rpartition("/")[2]
        answers = {"GetRuntimeMetric": self._metric, "ListSupportedMetrics": self._list if self._lists else None}
        answer = answers.get(name)
        return grpc.unary_unary_rpc_method_handler(answer) if answer else None

    def stop(self) -> None:
        """End it, as a workload does that is over."""
        self._over.set()
        self._server.stop(None).wait()

    def _metric(self, message: bytes, context: grpc.ServicerContext) -> bytes:
        name = MESSAGES["MetricRequest"].FromString(message).metric_name
        self.calls.append(name)
        if name == self._hangs:
            self._over.wait()
        if name not in self.served:
            context.abort(grpc.StatusCode.NOT_FOUND, "no such metric")
        return response(name, self.served[name], **self._row)

    def _list(self, _message: bytes, _context: grpc.ServicerContext) -> bytes:
        found = MESSAGES["ListSupportedMetricsResponse"]()
        for name in self.served:
            found.supported_metric.add().metric_name = name
        return bytes(found.SerializeToString())
