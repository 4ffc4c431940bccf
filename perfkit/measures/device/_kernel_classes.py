"""What a kernel does, in which precision, and whether on tensor cores, by its name.

Profilers record no more than the name. The tables are tried in order and the first match counts, so a name that
matches several (a convolution made of matrix products) belongs to its purpose. Names are compared in lower case.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from perfkit.measures.device._device_work import COMMUNICATION
from perfkit.measures.results.kernels import KernelClass, Precision

#: Characters of a name that are read: its beginning names the kernel, and after it only types follow.
MAX_CHARACTERS = 1_000


class _Marks(NamedTuple):
    """What identifies names of one kind: one of these words, or a match (far slower, for the few that need it)."""

    words: tuple[str, ...]
    pattern: re.Pattern[str] | None = None

    def fit(self, name: str) -> bool:
        return any(word in name for word in self.words) or (
            self.pattern is not None and self.pattern.search(name) is not None
        )


def _marks(*words: str, pattern: str | None = None) -> _Marks:
    return _Marks(tuple(part for word in words for part in word.split()), re.compile(pattern) if pattern else None)


def _kernels(kernel_class: KernelClass, *words: str, pattern: str | None = None) -> tuple[KernelClass, _Marks]:
    return kernel_class, _marks(*words, pattern=pattern)


#: "reduction" is all that folds a dimension: sums, norms, softmax, pooling, losses, scans. "indexing" is gathers,
#: scatters, embeddings and sorts.
CLASSES: tuple[tuple[KernelClass, _Marks], ...] = (
    # torch.compile: the kind of loop first, then all ops that were fused into it, so these go before all others.
    # "for" runs over lists of tensors, as optimizers do; "poi" over elements; "red", "per" and "mix" fold a dimension.
    _kernels("optimizer", pattern=r"^triton_for_"),
    _kernels("copy", pattern=r"^triton_poi_fused(?:_(?:_to_copy|clone|cat|copy_?))+_\d+$"),
    _kernels("elementwise", pattern=r"^triton_poi_"),
    _kernels("reduction", pattern=r"^triton_(?:red|per|mix|split_scan)_"),
    _kernels("attention", pattern=r"^triton_tem_\w*attention"),
    _kernels("convolution", pattern=r"^triton_tem_\w*convolution"),
    _kernels("matmul", pattern=r"^triton_tem_"),
    _kernels(
        "attention",
        # FlashAttention 2 and 3 and torch's copy of it: flash_fwd_kernel, flash_bwd_dq_dk_dv_loop_seqk_kernel.
        "flash_fwd flash_bwd flashfwd flashbwd flash_attn flash_attention flashattn pytorch_flash",
        # xFormers' and torch's memory-efficient attention, TensorRT's, cuDNN's (..._sdpa_...), AITER's and CK's.
        "fmha attentionkernel attentionbackwardkernel attention_kernel sdpa mha_fwd mha_bwd attn_fwd attn_bwd",
        # vLLM and FlashInfer: paged_attention_v2_kernel, BatchPrefillWithPagedKVCacheKernel; torch's FlexAttention.
        "paged_attention pagedkv raggedkv flashinfer flex_attention",
    ),
    _kernels(
        "optimizer",
        # torch's foreach and fused optimizers, and Apex': at::native::multi_tensor_apply_kernel<..., FusedAdam...>.
        "multi_tensor_apply fusedadam fusedsgd fusedadagrad adamfunctor lambstage",
        # bitsandbytes' kOptimizer32bit1State, and those that people write in Triton.
        "koptimizer32bit koptimizer8bit",
        pattern=r"(?:^|_)adamw?_kernel",
    ),
    _kernels(
        "layout conversion",
        # cuDNN's nchwToNhwcKernel and its opposite, cuBLAS' transpose kernels, MIOpen's batched_transpose_*.
        "nchwtonhwc nhwctonchw nchw2nhwc_ nhwc2nchw_ tensortransform transpose_readwrite batched_transpose",
        "transpose_kernel converttensor_kernel generictranspose",
        # FBGEMM and TorchRec reorder embeddings: permute_pooled_embs_kernel, recat_copy_async_kernel.
        "permute_pooled permute_2d permute_1d permute_indices permute_embedding permute_sequence permute_multi",
        "recat_",
    ),
    # Norms, before "convolution" and "elementwise" take them: cudnn::bn_fw_tr_1C11_kernel_NCHW, layer_norm.
    _kernels(
        "reduction",
        "::bn_fw ::bn_bw batch_norm batchnorm layer_norm layernorm group_norm groupnorm rms_norm rmsnorm",
        "instance_norm gammabeta",
    ),
    _kernels(
        "convolution",
        # CUTLASS and cuDNN: _s1688dgrad_optimized_, sm80_xmma_fprop_implicit_gemm_, ImplicitGemmConvolution.
        "fprop dgrad wgrad implicit_gemm implicitgemm implicit_convolve explicit_convolve conv1d conv2d conv3d",
        # cuDNN's older engines: volta_scudnn_128x64_relu_*, winograd, its own FFTs (cuFFT's are called *_fft).
        "scudnn_ hcudnn_ dcudnn_ winograd fft1d_r2c fft1d_c2r fft2d_r2c fft2d_c2r flip_filter im2col col2im",
        "pointwise_mult_and_sum_complex",
        # What cuDNN does around a convolution: cask_cudnn::computeOffsetsKernel, cutlass_cudnn's ReduceSplitK.
        "cask_cudnn cutlass_cudnn convolution depthwise",
        # MIOpen and CK on ROCm: igemm_fwd_gtcx_*, miopenSp3AsmConv_v21, naive_conv_*, kernel_grouped_conv_*.
        "igemm_fwd igemm_bwd igemm_wrw miopensp3asmconv miopengcnasmconv naive_conv grouped_conv",
    ),
    _kernels(
        "matmul",
        # cuBLAS: ampere_sgemm_128x64_nn, nvjet_hsh_*, gemv2T_kernel_val, dot_kernel, splitKreduce_kernel.
        "gemm gemv nvjet splitkreduce splitk_reduce cublaslt dot_kernel< reduce_1block_kernel",
        "epilogue::impl::globalkernel",
        # CUTLASS 3: cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<...>>, cutlass3x_sm100_*.
        "cutlass_80 cutlass_75 cutlass_70 cutlass::kernel cutlass3x",
        # Tensile and hipBLASLt on ROCm: Cijk_Ailk_Bljk_*; rocBLAS.
        "cijk_ rocblas_dot trsm trmm syrk",
        # A matmul_kernel that somebody wrote in Triton; Marlin and Machete of vLLM.
        "matmul marlin machete",
    ),
    _kernels(
        "indexing",
        # ATen: index_elementwise_kernel, _scatter_gather_elementwise_kernel, indexSelectLargeIndex, embedding_*.
        "index_elementwise indexfunc scatter gather indexselect index_select index_add index_put indexing_backward",
        "index_copy take_put embedding embs nonzero flag_kernel searchsorted unique",
        # CUB's and Thrust's sorts, FBGEMM's work on indices: linearize_index_kernel, bounds_check_indices_kernel.
        "radixsort mergesort bitonicsort sortkv topk top_k devicecompact deviceselect runlength reducebykey",
        "linearize_index bounds_check_indices _offsets_range jagged to_dense_representation segment",
    ),
    _kernels(
        "copy",
        # ATen: direct_copy_kernel_cuda, CatArrayBatchedCopy, copy_device_to_device; a conversion of type is a copy.
        "direct_copy_kernel catarray copy_device_to_device copy_kernel batchedcopy split_with_sizes_copy chunk_cat",
        # ROCm's runtime copies and fills with kernels: __amd_rocclr_copyBuffer.
        "rocclr_copy rocclr_fill memcpy memset",
    ),
    _kernels(
        "reduction",
        "reduce_kernel softmax max_pool avg_pool average_pool pooling reduceop cub::devicereduce cub::devicescan",
        "scan_kernel scan_",
        # Losses (cunn_ClassNLLCriterion_updateOutput_kernel, nll_loss_forward_reduce), scans, arg max.
        "criterion nll_loss cross_entropy cumsum reduction welford _norm_kernel argmax argmin",
    ),
    _kernels(
        "elementwise",
        # ATen's loops, random numbers and dropout; cuDNN's scalePackedTensor, addTensor, op_generic_tensor_kernel.
        "elementwise distribution_ dropout scalepackedtensor addtensor op_generic_tensor op_tensor activation_fw",
        "activation_bw pointwise fillfunctor arange tril triu gelu silu rotary swiglu",
    ),
)

#: How the names of Tensile's products begin, before their types.
TENSILE = r"cijk_[a-z]+_[a-z]+_"

#: Words for types in names of kernels, the narrow ones first: a float16 kernel that sums in float32 names both. nvjet
#: and Tensile have a letter for each operand: q and o (E4M3, E5M2), t (bfloat16), h (float16); F8 and B8, B, H, S, D.
PRECISIONS: tuple[tuple[Precision, _Marks], ...] = (
    ("float8", _marks("e4m3 e5m2 float8 float_8 fp8", pattern=rf"nvjet(?:_sm\d+)?_[qo]{{2}}|{TENSILE}[fb]8")),
    ("int8", _marks("i8816 s8816 i16832 s16832 imma s8s8", pattern=rf"{TENSILE}(?:i8|4xi8)")),
    ("bfloat16", _marks("bf16 bfloat16", pattern=rf"nvjet(?:_sm\d+)?_t|{TENSILE}b[bs]s")),
    (
        "float16",
        _marks(
            "f16 fp16 float16 __half c10::half half_t <half half> hgemm h884 s884 h1688 h16816 hcudnn",
            pattern=rf"nvjet(?:_sm\d+)?_h|{TENSILE}h(?:hs|ss|b_)",
        ),
    ),
    # Without another type in the name, the 16x8x8 product of single precision is TF32's.
    ("tf32", _marks("tf32 s1688", pattern=rf"{TENSILE}s_?x")),
    # Of the data, which a template or a lambda names first: arguments like a learning rate are doubles everywhere.
    (
        "float64",
        _marks(
            "dgemm d884 f64",
            pattern=rf"^(?:(?!\bfloat\b).)*?(?:<(?:[^()<>]*, )?|lambda\((?:\w+, )*)double\b|{TENSILE}db_",
        ),
    ),
    ("float32", _marks("float sgemm scudnn cgemm f32 ffma", pattern=rf"{TENSILE}sb?_")),
)

#: Kernels that can use tensor cores.
PRODUCTS = ("matmul", "attention", "convolution")
#: Names of those that do not use them, before those that do: sm80_xmma_gemm_..._ffma is one of xmma's.
NO_TENSOR_CORES = _marks(
    "ffma _simt_ gemv cgemm scudnn_ dcudnn_ fft1d fft2d dgrad_engine convolve_sgemm im2col winograd splitkreduce",
    "splitk_reduce offsetskernel gemmk1 dot_kernel flip_filter pointwise_mult",
    pattern=r"wgrad_alg\d_engine|dgrad(?:2d)?_alg\d|(?<!tf32_)(?<![a-z0-9])[sdz]gemm(?!\w*tf32)",
)
TENSOR_CORES = _marks(
    "tensorop tensor16 hmma imma wgmma gmma h884 s884 i884 d884 h1688 s1688 i1688 c1688 h16816 s16816 i16816 16832",
    "nvjet xmma_gemm xmma_fprop xmma_dgrad xmma_wgrad xmma_implicit flash fmha cutlass3x warp_specialized mfma wmma",
    # AMD's matrix instructions: Tensile writes the shape of the one that it uses.
    pattern=rf"sm\d+_xmma|{TENSILE}\w*_mi\d+x",
)


def class_of(name: str) -> KernelClass:
    """What a kernel of this name does."""
    if COMMUNICATION.search(name, 0, MAX_CHARACTERS):
        return "communication"
    name = name[:MAX_CHARACTERS].lower()
    return next((found for found, marks in CLASSES if marks.fit(name)), "other")


def precision_of(name: str) -> Precision | None:
    """The floating-point type (or int8) that a kernel reads; None where its name has none, as those of integers."""
    name = name[:MAX_CHARACTERS].lower()
    return next((precision for precision, marks in PRECISIONS if marks.fit(name)), None)


def uses_tensor_cores(name: str) -> bool | None:
    """Whether a kernel computes on tensor cores (AMD: matrix cores); None where its name does not show it.

    Kernels that multiply no matrices do not.
    """
    if class_of(name) not in PRODUCTS:
        return False
    name = name[:MAX_CHARACTERS].lower()
    if NO_TENSOR_CORES.fit(name):
        return False
    return True if TENSOR_CORES.fit(name) else None
