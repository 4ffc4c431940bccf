"""Which limit of a machine an op meets: products, convolutions, moving memory, or functions of each element."""

from __future__ import annotations

import re

from perfkit.run.records import OpKind

#: The first pattern that an op's name (without ``aten::``) matches decides.
_KINDS: tuple[tuple[str, OpKind], ...] = (
    (r"conv", "convolution"),
    (r"(^|_)(b?mm|addmm|baddbmm|addbmm|linear|matmul|addmv|mv|lstm|gru|scaled_mm)($|_)|dot_product", "matmul"),
    (r"gelu|erf", "erf"),
    (r"tanh", "tanh"),
    (r"exp|sigmoid|silu|softmax|softplus|elu", "exp"),
    (r"log", "log"),
    (r"pow", "pow"),
    (r"sqrt", "sqrt"),
    (r"dropout|bernoulli|rand|normal_|uniform", "random"),
    (r"^(sum|mean|max|min|amax|amin|argm|prod|var|std|norm|any|all|linalg_vector_norm|nll_loss)", "read"),
    (r"_$|^_fused_|^_foreach_", "update"),
    (r"", "copy"),
)


def op_kind(name: str) -> OpKind:
    """The kind of an op by its name: ``aten::addmm`` -> "matmul"."""
    plain = name.removeprefix("aten::")
    return next(kind for pattern, kind in _KINDS if re.search(pattern, plain))
