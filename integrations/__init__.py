"""Adapters to other frameworks. An adapter imports its framework, perfkit's public names and `perfkit._patches`.

`tensorboard` is also a report: it reads run folders and draws figures as the modules of perfkit.reports do.

lightning     ``ProfilerCallback`` for ``lightning.pytorch`` and ``pytorch_lightning``
huggingface   ``ProfilerCallback`` for ``transformers.Trainer`` and what is built on it
tensorboard   ``trace_handler`` for ``torch.profiler.profile`` and ``perfkit.profile``

Always spelled ``perfkit.integrations.<name>``. This package imports none of them.
"""
