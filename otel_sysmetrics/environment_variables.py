"""Every environment variable of this package, with what it means.

`opentelemetry-instrument` offers each of them as a flag (`--sysmetrics_sampling_interval 5`).
"""

from typing import Final

PREFIX: Final = "OTEL_PYTHON_SYSMETRICS_"

OTEL_PYTHON_SYSMETRICS_SAMPLING_INTERVAL: Final = "OTEL_PYTHON_SYSMETRICS_SAMPLING_INTERVAL"
"""Seconds between two samples, at least 0.1. Default: 15."""

OTEL_PYTHON_SYSMETRICS_PID: Final = "OTEL_PYTHON_SYSMETRICS_PID"
"""Process to watch. Default: the application itself; none for `otel-sysmetrics run` and `sample`."""

OTEL_PYTHON_SYSMETRICS_TRACK_PROCESS_TREE: Final = "OTEL_PYTHON_SYSMETRICS_TRACK_PROCESS_TREE"
"""Whether the process tags cover the descendants of the watched process too. Default: false."""

OTEL_PYTHON_SYSMETRICS_DISK_PATHS: Final = "OTEL_PYTHON_SYSMETRICS_DISK_PATHS"
"""Absolute paths whose file systems are reported. Default: `/`."""

OTEL_PYTHON_SYSMETRICS_COLLECTORS: Final = "OTEL_PYTHON_SYSMETRICS_COLLECTORS"
"""Kinds of hardware to read. Default: all."""

OTEL_PYTHON_SYSMETRICS_METRICS_INCLUDED: Final = "OTEL_PYTHON_SYSMETRICS_METRICS_INCLUDED"
"""Globs over tags to send; the word `default` stands for what is on by default. Default: `default`."""

OTEL_PYTHON_SYSMETRICS_METRICS_EXCLUDED: Final = "OTEL_PYTHON_SYSMETRICS_METRICS_EXCLUDED"
"""Globs over tags never to send; wins over what is included. Default: none."""

OTEL_PYTHON_SYSMETRICS_GPU_DEVICE_IDS: Final = "OTEL_PYTHON_SYSMETRICS_GPU_DEVICE_IDS"
"""GPUs to read, by the vendor's index or by UUID. Default: all."""

OTEL_PYTHON_SYSMETRICS_NO_CGROUP: Final = "OTEL_PYTHON_SYSMETRICS_NO_CGROUP"
"""Whether cgroup limits are ignored and the host's own figures hold. Default: false."""

OTEL_PYTHON_SYSMETRICS_NETWORK_INTERFACES: Final = "OTEL_PYTHON_SYSMETRICS_NETWORK_INTERFACES"
"""Globs over network interfaces to count, `!` excludes. Default: all but loopback and members of others."""

OTEL_PYTHON_SYSMETRICS_OPENMETRICS_ENDPOINTS: Final = "OTEL_PYTHON_SYSMETRICS_OPENMETRICS_ENDPOINTS"
"""OpenMetrics endpoints to scrape, as a JSON object of name to URL or to its settings. Default: none."""

OTEL_PYTHON_SYSMETRICS_OPENMETRICS_FILTERS: Final = "OTEL_PYTHON_SYSMETRICS_OPENMETRICS_FILTERS"
"""RE2 patterns of series to keep, or a JSON object of pattern to {label: pattern}. Default: everything."""

OTEL_PYTHON_SYSMETRICS_OPENMETRICS_HEADERS: Final = "OTEL_PYTHON_SYSMETRICS_OPENMETRICS_HEADERS"
"""Headers for every OpenMetrics endpoint, as a JSON object. Default: none."""

OTEL_PYTHON_SYSMETRICS_DCGM_EXPORTER: Final = "OTEL_PYTHON_SYSMETRICS_DCGM_EXPORTER"
"""URL of a dcgm-exporter, or of a query to a Prometheus that scrapes one. Default: none."""

OTEL_PYTHON_SYSMETRICS_NEURON_MONITOR_CONFIG: Final = "OTEL_PYTHON_SYSMETRICS_NEURON_MONITOR_CONFIG"
"""Configuration file for neuron-monitor, used as it is. Default: one of our own."""

OTEL_PYTHON_SYSMETRICS_TPU_RUNTIME_PORTS: Final = "OTEL_PYTHON_SYSMETRICS_TPU_RUNTIME_PORTS"
"""Ports on which TPU runtimes serve their metrics. Default: TPU_RUNTIME_METRICS_PORTS, else 8431."""

OTEL_PYTHON_SYSMETRICS_APPLE_GPU_POWER_LIMIT: Final = "OTEL_PYTHON_SYSMETRICS_APPLE_GPU_POWER_LIMIT"
"""Watts that an Apple GPU can draw, for its `powerPercent`: Apple publishes none. Default: none."""

OTEL_PYTHON_SYSMETRICS_SHARED_PID_NAMESPACE: Final = "OTEL_PYTHON_SYSMETRICS_SHARED_PID_NAMESPACE"
"""Whether pids here are the host's although the namespace looks like another one. Default: false."""

OTEL_PYTHON_SYSMETRICS_HOST_METRICS: Final = "OTEL_PYTHON_SYSMETRICS_HOST_METRICS"
"""Whether this process reports what is of the whole host: `auto` (one per job), `always`, `never`. Default: `auto`."""

OTEL_PYTHON_SYSMETRICS_CHILDREN: Final = "OTEL_PYTHON_SYSMETRICS_CHILDREN"
"""Whether children report: `auto` (all but multiprocessing's daemonic ones), `always`, `never`. Default: `auto`."""

OTEL_PYTHON_SYSMETRICS_RANK_ATTRIBUTES: Final = "OTEL_PYTHON_SYSMETRICS_RANK_ATTRIBUTES"
"""Whether every point carries the rank of a distributed job. Default: false."""

OTEL_PYTHON_SYSMETRICS_ATTRIBUTES: Final = "OTEL_PYTHON_SYSMETRICS_ATTRIBUTES"
"""Attributes for every point, as a JSON object. Default: none."""

OTEL_PYTHON_SYSMETRICS_ROOT_PATH: Final = "OTEL_PYTHON_SYSMETRICS_ROOT_PATH"
"""Where the host's file system is mounted in a container. Default: `/`."""

OTEL_PYTHON_SYSMETRICS_DISABLED: Final = "OTEL_PYTHON_SYSMETRICS_DISABLED"
"""Whether this package does nothing at all. Default: false."""
