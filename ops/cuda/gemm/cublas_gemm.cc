#include "ops/cuda/gemm/cublas_gemm.h"

#include "ops/cuda/runtime/cublas_status.h"
#include "ops/cuda/runtime/cuda_status.h"

namespace espalier {
namespace {

cudaDataType_t CudaType(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return CUDA_R_16BF;
    case DType::kF16:
      return CUDA_R_16F;
    default:
      return CUDA_R_32F;
  }
}

// The result where k is 0: beta * C, for beta 0 or 1.
KernelStatus ScaleOnly(const Gemm& gemm, cudaStream_t stream, const char* op) {
  if (gemm.beta != 0) return KernelStatus::Ok();
  const size_t bytes = SizeOf(gemm.output);
  for (int64_t i = 0; i < gemm.batch; ++i) {
    char* c = static_cast<char*>(gemm.c) + i * gemm.c_stride * static_cast<int64_t>(bytes);
    ESPALIER_KERNEL_RETURN_IF_ERROR(CudaStatus(
        cudaMemset2DAsync(c, static_cast<size_t>(gemm.ldc) * bytes, 0,
                          static_cast<size_t>(gemm.n) * bytes, static_cast<size_t>(gemm.m), stream),
        op));
  }
  return KernelStatus::Ok();
}

}  // namespace

KernelStatus RunGemm(DeviceContexts& contexts, const Gemm& gemm, void* stream, const char* op) {
  if (gemm.m == 0 || gemm.n == 0 || gemm.batch == 0) return KernelStatus::Ok();
  if (gemm.k == 0) return ScaleOnly(gemm, static_cast<cudaStream_t>(stream), op);
  DeviceContext* context = nullptr;
  ESPALIER_KERNEL_RETURN_IF_ERROR(contexts.Current(&context));
  cublasHandle_t handle = nullptr;
  ESPALIER_KERNEL_RETURN_IF_ERROR(context->Cublas(stream, &handle));
  // cuBLAS is column-major: computes a row-major C = A B as C^T = B^T A^T.
  const cublasOperation_t op_a = gemm.a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t op_b = gemm.b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cudaDataType_t in = CudaType(gemm.input), out = CudaType(gemm.output);
  if (gemm.batch == 1) {
    return CublasStatus(
        cublasGemmEx_64(handle, op_b, op_a, gemm.n, gemm.m, gemm.k, &gemm.alpha, gemm.b.data, in,
                        gemm.b.ld, gemm.a.data, in, gemm.a.ld, &gemm.beta, gemm.c, out, gemm.ldc,
                        CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
        op);
  }
  return CublasStatus(
      cublasGemmStridedBatchedEx_64(
          handle, op_b, op_a, gemm.n, gemm.m, gemm.k, &gemm.alpha, gemm.b.data, in, gemm.b.ld,
          gemm.b.batch_stride, gemm.a.data, in, gemm.a.ld, gemm.a.batch_stride, &gemm.beta, gemm.c,
          out, gemm.ldc, gemm.c_stride, gemm.batch, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
      op);
}

}  // namespace espalier
