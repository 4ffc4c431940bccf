"""Which limit of a machine an op meets: products, convolutions, moving memory, functions of each element, or layers."""

from __future__ import annotations

import re

from perfkit.run.records import OpKind


def _words(names: str) -> str:
    """A pattern for names that have one of these between underscores: ``relu`` is not ``elu``."""
    return rf"(^|_)({names})(_|$)"


#: The first pattern that an op's name (without ``aten::``) matches decides.
_KINDS: tuple[tuple[str, OpKind], ...] = (
    (r"conv", "convolution"),
    (r"dot_product", "attention"),
    (r"batch_norm(?!.*backward)", "batch norm"),
    (r"max_pool2d(?!.*backward)", "max pool"),
    (r"max_pool2d", "max pool gradient"),
    (r"avg_pool2d", "average pool"),
    (r"^upsample_nearest2d", "nearest"),
    (r"^upsample_bilinear2d", "bilinear"),
    # Their backward needs the result only, which is arithmetic.
    (r"^(_softmax|sigmoid|tanh)_backward", "copy"),
    (r"^_(log_)?softmax", "softmax"),
    (_words("b?mm|addmm|baddbmm|addbmm|linear|matmul|addmv|mv|dot|lstm|gru|rnn"), "matmul"),
    (_words("gelu|erf"), "erf"),
    (_words("tanh"), "tanh"),
    (_words("exp|sigmoid|silu|softmax|softplus|elu|mish"), "exp"),
    (_words("log|log1p|log2|log10"), "log"),
    (_words("pow"), "pow"),
    (_words("sqrt|rsqrt"), "sqrt"),
    (_words("dropout|bernoulli|exponential"), "bernoulli"),
    (_words("normal|uniform|random"), "normal"),
    (r"^(sum|mean|max|min|amax|amin|argm|prod|var|std|norm|any|all|linalg_vector_norm|nonzero)(?!.*backward)", "read"),
    (r"pool(?!.*backward)", "read"),
    (r"_$|^_fused_|^_foreach_", "update"),
    (r"", "copy"),
)


def op_kind(name: str) -> OpKind:
    """The kind of an op by its name: ``aten::addmm`` -> "matmul"."""
    plain = name.removeprefix("aten::")
    return next(kind for pattern, kind in _KINDS if re.search(pattern, plain))
