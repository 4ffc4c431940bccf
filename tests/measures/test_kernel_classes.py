from __future__ import annotations

import numpy as np
import pytest

from perfkit.measures.device._kernel_classes import class_of, precision_of, uses_tensor_cores
from perfkit.trace import Kind, Trace

ATEN = "void at::native::"
#: Names as libraries build them: (name, class, precision, tensor cores).
NAMES = [
    # cuBLAS
    ("ampere_sgemm_128x64_nn", "matmul", "float32", False),
    ("ampere_dgemm_64x64_nt", "matmul", "float64", False),
    ("volta_h884gemm_128x64_ldg8_nn", "matmul", "float16", True),
    ("ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_nn", "matmul", "float16", True),
    ("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn", "matmul", "bfloat16", True),
    ("sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize64x64x32_stage4_tensor16x8x8_kernel", "matmul", "tf32", True),
    ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x8_ffma_aligna4_execute_kernel", "matmul", "float32", False),
    ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NNT", "matmul", "float16", True),
    ("nvjet_tst_192x192_64x4_2x1_v_bz_TNN", "matmul", "bfloat16", True),
    ("nvjet_sm100_qqtst_128x256_128x6_2x1_2cta_h_bz_TNT", "matmul", "float8", True),
    ("void gemv2T_kernel_val<int, int, __nv_bfloat16, __nv_bfloat16, float, 128>(...)", "matmul", "bfloat16", False),
    # CUTLASS
    ("void cutlass::Kernel<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>(...)", "matmul", "float32", False),
    ("void cutlass::Kernel2<cutlass_80_tensorop_d884gemm_64x64_16x4_nn_align1>(...)", "matmul", "float64", True),
    ("cutlass3x_sm100_bstensorop_s16864gemm_block_scaled_ue4m3xe2m1", "matmul", "float8", True),
    (
        "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<MainloopSm90TmaGmmaWarpSpecialized<7>, "
        "cutlass::bfloat16_t>>(Params)",
        *("matmul", "bfloat16", True),
    ),
    # attention
    ("void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<cutlass::half_t>", "attention", "float16", True),
    (
        "fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel)",
        "attention",
        "bfloat16",
        True,
    ),
    ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7", "attention", "float16", True),
    ("void vllm::paged_attention_v2_kernel<__half, __half, 128, 16>(...)", "attention", "float16", None),
    # convolution
    ("sm80_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x64", "convolution", "float16", True),
    ("volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1", "convolution", "float32", False),
    ("void cudnn::cnn::wgrad_alg0_engine<float, 128, 6, 7, 3, 3, 5, false, 512>(...)", "convolution", "float32", False),
    ("miopenSp3AsmConv_v21_1_2_gfx9_fp16_stride1.kd", "convolution", "float16", None),
    # normalization, pooling and other reductions
    ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<__half, float, int, 512, true>(...)", "reduction", "float16", False),
    (
        f"{ATEN}(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float>",
        "reduction",
        "bfloat16",
        False,
    ),
    (
        f"{ATEN}reduce_kernel<512, 1, at::native::ReduceOp<double, at::native::MeanOps<double>>>",
        "reduction",
        "float64",
        False,
    ),
    (
        f"{ATEN}vectorized_elementwise_kernel<2, at::native::exp_kernel_cuda(at::TensorIteratorBase&)::"
        "{lambda()#2}::operator()() const::{lambda()#1}::operator()() const::{lambda(double)#1}, std::array<char*, 2>>",
        "elementwise",
        "float64",
        False,
    ),
    # Doubles that are arguments: a learning rate, a batch norm's momentum.
    (
        f"{ATEN}(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
        "FusedOptimizerTensorListMetadata<4>, at::native::(anonymous namespace)::FusedAdamMathFunctor<float, 4, "
        "(at::native::ADAM_MODE)1, false>, float const*, double, double, double, double, double, bool, float const*>",
        "optimizer",
        "float32",
        False,
    ),
    (
        f"{ATEN}unrolled_elementwise_kernel_for_multi_outputs<3, at::native::(anonymous namespace)::"
        "batch_norm_update_stats_and_invert(at::Tensor const&, at::Tensor const&, double, double, long)::"
        "{lambda()#2}::operator()() const::{lambda(float, float, float, float)#1}, std::array<char*, 7ul>>",
        "reduction",
        "float32",
        False,
    ),
    (
        "void (anonymous namespace)::softmax_warp_forward<c10::Half, float, float, 10, true>",
        "reduction",
        "float16",
        False,
    ),
    # loops over elements, copies, layouts, indices
    (f"{ATEN}vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<long>>(int)", "elementwise", None, False),
    (f"{ATEN}unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda()>", "copy", None, False),
    (f"{ATEN}(anonymous namespace)::CatArrayBatchedCopy<float, unsigned int, 2>", "copy", "float32", False),
    ("__amd_rocclr_fillBufferAligned.kd", "copy", None, False),
    ("void cudnn::ops::nchwToNhwcKernel<__half, __half, float, false, true>", "layout conversion", "float16", False),
    (f"{ATEN}_scatter_gather_elementwise_kernel<128, 4, float>", "indexing", "float32", False),
    ("void cub::CUB_200200_800_NS::DeviceRadixSortOnesweepKernel<Policy, false, long>", "indexing", None, False),
    # communication, optimizers
    ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "communication", "bfloat16", False),
    ("ncclDevKernel_Generic_1", "communication", None, False),
    ("rcclGenericKernel<1, false>(ncclDevKernelArgsStorage)", "communication", None, False),
    ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(...)", "communication", "bfloat16", False),
    (
        f"{ATEN}multi_tensor_apply_kernel<TensorListMetadata<4>, FusedAdamMathFunctor<float, 4>>",
        "optimizer",
        "float32",
        False,
    ),
    # torch.compile: the names of all that was fused follow the sort of loop
    ("triton_poi_fused_convolution_native_batch_norm_relu_3", "elementwise", None, False),
    ("triton_poi_fused__to_copy_clone_4", "copy", None, False),
    ("triton_red_fused_add_native_layer_norm_1", "reduction", None, False),
    ("triton_per_fused__softmax_2", "reduction", None, False),
    ("triton_for_fused_0", "optimizer", None, False),
    ("triton_tem_fused_addmm_relu_3", "matmul", None, None),
    ("triton_tem_fused_flex_attention_0", "attention", None, None),
    # ROCm's Tensile
    ("Cijk_Ailk_Bljk_HHS_BH_MT128x128x64_MI32x32x8x1_SN_LDSB0", "matmul", "float16", True),
    ("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x256x64_MI16x16x1", "matmul", "bfloat16", True),
    ("Cijk_Alik_Bljk_F8B8S_BH_MT128x128x128_MI16x16x1", "matmul", "float8", True),
    ("Cijk_Ailk_Bljk_DB_MT64x64x16_SN", "matmul", "float64", None),
    ("my_kernel(unsigned int)", "other", None, False),
]


@pytest.mark.parametrize(("name", "found", "precision", "tensor_cores"), NAMES, ids=[name[:50] for name, *_ in NAMES])
def test_class_precision_and_tensor_cores_follow_from_the_name(
    name: str, found: str, precision: str | None, tensor_cores: bool | None
) -> None:
    assert (class_of(name), precision_of(name), uses_tensor_cores(name)) == (found, precision, tensor_cores)


def test_next_to_no_device_time_of_the_real_traces_is_unclassified(shared_trace: Trace) -> None:
    rows = np.flatnonzero(shared_trace.is_kind(Kind.KERNEL))
    duration = (shared_trace.end_ns - shared_trace.start_ns)[rows]
    other = np.array([class_of(shared_trace.names[code]) == "other" for code in shared_trace.name[rows].tolist()], bool)

    # None today; a kernel that begins to matter has to be sorted in.
    assert duration[other].sum() <= duration.sum() / 1000


def test_only_the_beginning_of_a_name_counts_however_long_it_is() -> None:
    long = "x" * 1_000_000 + "ampere_fp16_s16816gemm nccl"

    assert (class_of(long), precision_of(long), uses_tensor_cores(long)) == ("other", None, False)
