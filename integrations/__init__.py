"""Adapters to other frameworks; each imports only its framework, perfkit's public names and `perfkit._patches`.

lightning     ``ProfilerCallback`` for ``lightning.pytorch`` and ``pytorch_lightning``
huggingface   ``ProfilerCallback`` for ``transformers.Trainer`` and what is built on it
tensorboard   ``trace_handler`` for ``torch.profiler.profile`` and ``perfkit.profile``

Spelled ``perfkit.integrations.<name>`` everywhere. This package imports none of them.
"""
