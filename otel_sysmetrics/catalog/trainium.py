"""What is measured of AWS Trainium and Inferentia: one row per tag."""

from functools import partial
from typing import Final

from otel_sysmetrics.spec import MetricSpec

_host: Final = partial(MetricSpec, collectors=("trainium",), unit="By")
_core: Final = partial(MetricSpec, collectors=("trainium",), labels=(("core", "neuron.core"),))

UTILIZATION: Final = _core(
    tag="trn.{core}.neuroncore_utilization",
    unit="%",
    brief="Busy share of the NeuronCore, summed over all runtimes.",
)
HOST_MEMORY: Final = _host(
    tag="trn.host_total_memory_usage",
    brief="Memory of the host that the Neuron runtimes use.",
)
DEVICE_MEMORY: Final = _host(
    tag="trn.neuron_device_total_memory_usage",
    brief="Memory of the Neuron devices in use.",
)
HOST_APPLICATION: Final = _host(
    tag="trn.host_total_memory_usage.application_memory",
    brief="Memory of the host of the application, over all Neuron runtimes.",
)
HOST_CONSTANTS: Final = _host(
    tag="trn.host_total_memory_usage.constants",
    brief="Memory of the host for constants, over all Neuron runtimes.",
)
HOST_DMA_BUFFERS: Final = _host(
    tag="trn.host_total_memory_usage.dma_buffers",
    brief="Memory of the host for DMA buffers, over all Neuron runtimes.",
)
HOST_TENSORS: Final = _host(
    tag="trn.host_total_memory_usage.tensors",
    brief="Memory of the host for tensors, over all Neuron runtimes.",
)
CORE_CONSTANTS: Final = _core(
    tag="trn.{core}.neuroncore_memory_usage.constants",
    unit="By",
    brief="Device memory of the NeuronCore for constants.",
)
CORE_MODEL_CODE: Final = _core(
    tag="trn.{core}.neuroncore_memory_usage.model_code",
    unit="By",
    brief="Device memory of the NeuronCore for the model's code.",
)
CORE_SCRATCHPAD: Final = _core(
    tag="trn.{core}.neuroncore_memory_usage.model_shared_scratchpad",
    unit="By",
    brief="Device memory of the NeuronCore for scratch space that models share.",
)
CORE_RUNTIME: Final = _core(
    tag="trn.{core}.neuroncore_memory_usage.runtime_memory",
    unit="By",
    brief="Device memory of the NeuronCore of the Neuron runtime.",
)
CORE_TENSORS: Final = _core(
    tag="trn.{core}.neuroncore_memory_usage.tensors",
    unit="By",
    brief="Device memory of the NeuronCore for tensors.",
)
