// f16 and bf16 GEMM by 16x16x16 wmma: element (i, j) of y starts at 0 and accumulates k = 0..15,
// 16..31, ... in this order. The tile shape depends on the number of rows; it decides which
// elements a block computes, never the order of summation of an element.
#include <cuda_pipeline.h>
#include <mma.h>

#include <cstdint>

#include "ops/cuda/gemm/batch_invariant_linear.h"
#include "ops/cuda/math/numeric.cuh"
#include "ops/cuda/runtime/launch.cuh"

namespace espalier {
namespace {

namespace wmma = nvcuda::wmma;

constexpr int kStageK = 64;  // of k per stage
constexpr int kPitch =
    kStageK + 8;                 // elements from row to row in shared memory: fewer bank conflicts
constexpr int kChunk = 8;        // elements of one 16-byte copy
constexpr int kPatchPitch = 20;  // floats from row to row of a 16x16 patch

template <int kWarpsM, int kWarpsN, int kFragmentsM, int kFragmentsN, int kStageCount>
struct TileShape {
  static constexpr int kM = 16 * kWarpsM * kFragmentsM;
  static constexpr int kN = 16 * kWarpsN * kFragmentsN;
  static constexpr int kWarpColumns = kWarpsN;
  static constexpr int kFragsM = kFragmentsM;
  static constexpr int kFragsN = kFragmentsN;
  static constexpr int kThreadCount = 32 * kWarpsM * kWarpsN;
  static constexpr int kStages = kStageCount;
  static constexpr int kStageElements = (kM + kN) * kPitch;
  static constexpr size_t kSharedBytes = size_t{2} * kStageCount * kStageElements;
  static_assert(kSharedBytes >= size_t{4} * 16 * kPatchPitch * kWarpsM * kWarpsN);
};
using FewRows = TileShape<1, 2, 1, 1, 6>;   // 16 x 32
using SomeRows = TileShape<1, 2, 4, 1, 4>;  // 64 x 32
using ManyRows = TileShape<2, 2, 4, 4, 3>;  // 128 x 128

// Copies rows [first, first + count) and k [k0, k0 + kStageK) of a row-major matrix [rows, columns]
// to shared memory; zeros outside the matrix.
template <typename T, bool aligned, int kThreadCount>
__device__ void LoadTile(const T* matrix, int64_t rows, int64_t columns, int64_t first, int count,
                         int64_t k0, T* tile) {
  constexpr int kChunksPerRow = kStageK / kChunk;
  for (int c = threadIdx.x; c < count * kChunksPerRow; c += kThreadCount) {
    const int row = c / kChunksPerRow, at = c % kChunksPerRow * kChunk;
    T* to = tile + row * kPitch + at;
    const int64_t r = first + row, k = k0 + at;
    if constexpr (aligned) {
      const bool inside = r < rows && k < columns;
      __pipeline_memcpy_async(to, inside ? matrix + r * columns + k : matrix, 16, inside ? 0 : 16);
    } else {
      for (int e = 0; e < kChunk; ++e) {
        const bool inside = r < rows && k + e < columns;
        to[e] = inside ? matrix[r * columns + k + e] : FromFloat<T>(0.0f);
      }
    }
  }
}

template <typename T, typename Tile, bool aligned>
__global__ void __launch_bounds__(Tile::kThreadCount)
    TensorCoreKernel(int64_t rows, int64_t in, int64_t out, const T* x, const T* weight,
                     const T* bias, T* y) {
  extern __shared__ __align__(128) unsigned char shared[];
  T* stages = reinterpret_cast<T*>(shared);
  const int64_t row0 = static_cast<int64_t>(blockIdx.y) * Tile::kM;
  const int64_t column0 = static_cast<int64_t>(blockIdx.x) * Tile::kN;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int warp_m = warp / Tile::kWarpColumns * (16 * Tile::kFragsM);
  const int warp_n = warp % Tile::kWarpColumns * (16 * Tile::kFragsN);
  const int64_t steps = (in + kStageK - 1) / kStageK;

  const auto load = [&](int64_t step) {
    if (step < steps) {
      T* a = stages + step % Tile::kStages * Tile::kStageElements;
      T* b = a + Tile::kM * kPitch;
      LoadTile<T, aligned, Tile::kThreadCount>(x, rows, in, row0, Tile::kM, step * kStageK, a);
      LoadTile<T, aligned, Tile::kThreadCount>(weight, out, in, column0, Tile::kN, step * kStageK,
                                               b);
    }
    __pipeline_commit();
  };

  wmma::fragment<wmma::accumulator, 16, 16, 16, float> sums[Tile::kFragsM][Tile::kFragsN];
#pragma unroll
  for (int i = 0; i < Tile::kFragsM; ++i) {
#pragma unroll
    for (int j = 0; j < Tile::kFragsN; ++j) wmma::fill_fragment(sums[i][j], 0.0f);
  }

  for (int s = 0; s < Tile::kStages - 1; ++s) load(s);
  for (int64_t step = 0; step < steps; ++step) {
    __pipeline_wait_prior(Tile::kStages - 2);
    // All threads' copies of this stage have arrived, and no thread still reads the stage that
    // `load` overwrites.
    __syncthreads();
    load(step + Tile::kStages - 1);
    const T* a = stages + step % Tile::kStages * Tile::kStageElements;
    const T* b = a + Tile::kM * kPitch;
#pragma unroll
    for (int k = 0; k < kStageK; k += 16) {
      wmma::fragment<wmma::matrix_a, 16, 16, 16, T, wmma::row_major> left[Tile::kFragsM];
      wmma::fragment<wmma::matrix_b, 16, 16, 16, T, wmma::col_major> right[Tile::kFragsN];
#pragma unroll
      for (int i = 0; i < Tile::kFragsM; ++i) {
        wmma::load_matrix_sync(left[i], a + (warp_m + 16 * i) * kPitch + k, kPitch);
      }
#pragma unroll
      for (int j = 0; j < Tile::kFragsN; ++j) {
        wmma::load_matrix_sync(right[j], b + (warp_n + 16 * j) * kPitch + k, kPitch);
      }
#pragma unroll
      for (int i = 0; i < Tile::kFragsM; ++i) {
#pragma unroll
        for (int j = 0; j < Tile::kFragsN; ++j) {
          wmma::mma_sync(sums[i][j], left[i], right[j], sums[i][j]);
        }
      }
    }
  }
  __pipeline_wait_prior(0);
  __syncthreads();

  // Each warp writes its fragments to a patch of the stages' memory to store them row by row.
  float* patch = reinterpret_cast<float*>(shared) + warp * 16 * kPatchPitch;
#pragma unroll
  for (int i = 0; i < Tile::kFragsM; ++i) {
#pragma unroll
    for (int j = 0; j < Tile::kFragsN; ++j) {
      wmma::store_matrix_sync(patch, sums[i][j], kPatchPitch, wmma::mem_row_major);
      __syncwarp();
      for (int e = lane; e < 256; e += 32) {
        const int64_t r = row0 + warp_m + 16 * i + e / 16;
        const int64_t c = column0 + warp_n + 16 * j + e % 16;
        if (r < rows && c < out) {
          const float sum = patch[e / 16 * kPatchPitch + e % 16];
          y[r * out + c] = FromFloat<T>(bias != nullptr ? sum + ToFloat(bias[c]) : sum);
        }
      }
      __syncwarp();
    }
  }
}

template <typename T, typename Tile, bool aligned>
KernelStatus LaunchTensorCore(const BatchInvariantLinearProblem& p, cudaStream_t stream) {
  const auto kernel = TensorCoreKernel<T, Tile, aligned>;
  ESPALIER_KERNEL_RETURN_IF_ERROR(
      CudaStatus(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      static_cast<int>(Tile::kSharedBytes)),
                 "linear: cudaFuncSetAttribute"));
  const dim3 grid(static_cast<unsigned>((p.out + Tile::kN - 1) / Tile::kN),
                  static_cast<unsigned>((p.rows + Tile::kM - 1) / Tile::kM));
  kernel<<<grid, Tile::kThreadCount, Tile::kSharedBytes, stream>>>(
      p.rows, p.in, p.out, static_cast<const T*>(p.x), static_cast<const T*>(p.weight),
      static_cast<const T*>(p.bias), static_cast<T*>(p.y));
  return LaunchStatus("linear");
}

template <typename T>
KernelStatus RunTensorCore(const BatchInvariantLinearProblem& p, cudaStream_t stream) {
  const bool aligned = p.in % kChunk == 0 && reinterpret_cast<uintptr_t>(p.x) % 16 == 0 &&
                       reinterpret_cast<uintptr_t>(p.weight) % 16 == 0;
  if (!aligned) return LaunchTensorCore<T, SomeRows, false>(p, stream);
  if (p.rows <= 16) return LaunchTensorCore<T, FewRows, true>(p, stream);
  if (p.rows <= 128) return LaunchTensorCore<T, SomeRows, true>(p, stream);
  return LaunchTensorCore<T, ManyRows, true>(p, stream);
}

}  // namespace

KernelStatus BatchInvariantLinear(const BatchInvariantLinearProblem& problem, cudaStream_t stream) {
  if (problem.rows == 0 || problem.out == 0) return KernelStatus::Ok();
  switch (problem.dtype) {
    case DType::kBF16:
      return RunTensorCore<__nv_bfloat16>(problem, stream);
    case DType::kF16:
      return RunTensorCore<__half>(problem, stream);
    default:
      return UnsupportedType("linear", problem.dtype);
  }
}

}  // namespace espalier
