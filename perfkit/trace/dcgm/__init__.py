"""Node metrics of NVIDIA's Data Center GPU Manager: what `dcgmi dmon` prints, and what dcgm-exporter serves."""

from perfkit.trace.dcgm.node_metrics import NodeMetrics, ObservedGpu, read_node_metrics

__all__ = ["NodeMetrics", "ObservedGpu", "read_node_metrics"]
