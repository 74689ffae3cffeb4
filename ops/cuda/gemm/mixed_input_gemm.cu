// The order of summation of every element: k is cut into chunks of 32, and the chunks into kSplitK
// slices. The tensor cores sum within a chunk; chunks are added in order to their slice's sum, and
// slices from first to last. SkinnyKernel (few rows) and MultistageKernel (many rows) differ only
// in which warp computes what.
#include <algorithm>
#include <cstdint>

#include "ops/cuda/gemm/mixed_input_gemm.h"
#include "ops/cuda/gemm/mixed_input_gemm_fragments.cuh"
#include "ops/cuda/gemm/mixed_input_gemm_multistage.cuh"
#include "ops/cuda/gemm/quantize_group.cuh"
#include "ops/cuda/runtime/register.h"

namespace espalier {
namespace mixed_input_gemm {

constexpr int kPad = 4;  // floats of padding after each row of outputs in shared memory

// Prefetch distance in chunks, of the weights and of x, and blocks per multiprocessor: as much as
// the registers of so many blocks hold.
struct Depth {
  int weights, x, blocks;
};
constexpr Depth DepthOf(GemmWeightFormat kind, int tiles) {
  const int blocks = tiles == 4 ? 1 : 2;
  if (kind == GemmWeightFormat::kF32) return {2, tiles == 1 ? 2 : 1, blocks};
  if (kind == GemmWeightFormat::kBF16 || kind == GemmWeightFormat::kF16) {
    return {tiles == 1 ? 4 : 2, 2, blocks};
  }
  if (tiles > 1) return {4, 2, blocks};
  return kind == GemmWeightFormat::kPacked8 ? Depth{6, 3, 2} : Depth{6, 2, 3};
}

// Split-K kernel that streams weights from global memory to registers. A block computes 8 kTiles
// rows by 16 kOut outputs; each of its warps takes one slice of k. Grid: (blocks of rows, groups of
// outputs), so that blocks that read the same weights run at about the same time.
template <GemmWeightFormat kind, int kTiles, int kOut>
__global__ void __launch_bounds__(kThreads, DepthOf(kind, kTiles).blocks)
    SkinnyKernel(Matrices m, PackedX x, Activation activation) {
  using F = WeightLayout<kind>;
  using Inputs = typename F::Inputs;
  constexpr int kRows = kTiles * kTileRows, kOutputs = kOut * kTileOutputs;
  constexpr Depth kDepth = DepthOf(kind, kTiles);
  constexpr int kAhead = kDepth.weights, kAheadX = kDepth.x;
  static_assert(kAhead % 2 == 0 && kAhead % kAheadX == 0, "cursors stand at even chunks");
  __shared__ float parts[kSplitK][kRows][kOutputs + kPad];
  static_assert(kSplitK == kWarps);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int64_t row0 = static_cast<int64_t>(blockIdx.x) * kRows;
  const int64_t tile0 = static_cast<int64_t>(blockIdx.y) * kOut;
  const int begin = SplitKBegin(x.chunks, warp), end = SplitKBegin(x.chunks, warp + 1);

  typename F::Cursor cursors[kOut];
#pragma unroll
  for (int o = 0; o < kOut; ++o) {
    // Clamps tiles beyond the last to the last.
    const int64_t tile = min(tile0 + o, m.tiles - 1);
    const WeightMatrix& matrix = MatrixOfTile(m, tile);
    cursors[o] = typename F::Cursor(m, matrix, tile - matrix.first_tile, lane);
    cursors[o].Advance(begin);
  }
  typename F::Raw raw[kAhead][kOut];
  const auto load_weights = [&](int n, typename F::Raw(&to)[kOut]) {
#pragma unroll
    for (int o = 0; o < kOut; ++o) to[o] = F::Load(cursors[o], n);
  };
  LaunchDependentGrids();
#pragma unroll
  for (int u = 0; u < kAhead; ++u) {
    if (begin + u < end) load_weights(u, raw[u]);
  }
  WaitOnDependentGrids();
  constexpr int kBytes = Inputs::kBytes;
  const int64_t of_tile = static_cast<int64_t>(x.chunks) * kBytes;
  typename Inputs::Cursor x_cursor(
      x.data + row0 / kTileRows * of_tile + static_cast<int64_t>(begin) * kBytes, lane);
  Inputs inputs[kAheadX][kTiles];
  const auto load_inputs = [&](int n, Inputs(&to)[kTiles]) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      to[i].Load(x_cursor, n * kBytes + i * static_cast<int>(of_tile));
    }
  };
#pragma unroll
  for (int u = 0; u < kAheadX; ++u) {
    if (begin + u < end) load_inputs(u, inputs[u]);
  }
  float sums[kOut][kTiles][4] = {};
  // Multiplies the u-th chunk; its registers take the chunk kAhead further on, if there is one.
  const auto add = [&](int u, bool further) {
    if constexpr (kOut == 1) {
      float of_chunk[kTiles][4];
      const typename F::Weights weights = F::Unpack(raw[u][0], lane);
      if (further) load_weights(kAhead + u, raw[u]);
      AddTiles<F>(weights, inputs[u % kAheadX], of_chunk, sums[0]);
    } else {
      // Unpacking all tiles at once would exceed the registers.
      typename F::Raw now[kOut];
#pragma unroll
      for (int o = 0; o < kOut; ++o) now[o] = raw[u][o];
      if (further) load_weights(kAhead + u, raw[u]);
#pragma unroll
      for (int o = 0; o < kOut; ++o) {
        float of_chunk[kTiles][4];
        AddTiles<F>(F::Unpack(now[o], lane), inputs[u % kAheadX], of_chunk, sums[o]);
      }
    }
  };
  const auto advance = [&] {
#pragma unroll
    for (int o = 0; o < kOut; ++o) cursors[o].Advance(kAhead);
    x_cursor.Advance(kAhead * kBytes);
  };
  int chunk = begin;
  // The main loop needs no bounds checks: at least kAhead more chunks follow those already read.
  for (; chunk + 2 * kAhead <= end; chunk += kAhead) {
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      add(u, true);
      load_inputs(kAheadX + u, inputs[u % kAheadX]);
    }
    advance();
  }
  for (; chunk < end; chunk += kAhead) {
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      const int here = chunk + u;
      if (here >= end) break;
      add(u, here + kAhead < end);
      if (here + kAheadX < end) load_inputs(kAheadX + u, inputs[u % kAheadX]);
    }
    advance();
  }
#pragma unroll
  for (int o = 0; o < kOut; ++o) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        parts[warp][i * kTileRows + 2 * t + e % 2][o * kTileOutputs + g + e / 2 * 8] =
            sums[o][i][e];
      }
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kRows * kOutputs; i += kThreads) {
    const int output = i % kOutputs, row = i / kOutputs;
    const int64_t tile = tile0 + output / kTileOutputs;
    if (tile >= m.tiles) break;
    float sum = 0;
#pragma unroll
    for (int p = 0; p < kSplitK; ++p) sum += parts[p][row][output];
    const WeightMatrix& matrix = MatrixOfTile(m, tile);
    Finish(matrix, x, activation, row0 + row,
           (tile - matrix.first_tile) * kTileOutputs + output % kTileOutputs, sum);
  }
}

// Splits x into three bf16 planes by repeated truncation: exact except for numbers below 2^-110.
// Thread i takes elements 4 i to 4 i + 3 of the padded rows.
struct SplitRows {
  const float* x;
  int64_t in, chunks;
  uint8_t* to;
  __device__ void operator()(int64_t i) const {
    const int64_t at = 4 * i, row = at / (chunks * kChunk), input = at % (chunks * kChunk);
    uint32_t rest[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      rest[e] = input + e < in ? __float_as_uint(x[row * in + input + e]) : 0u;
    }
    uint8_t* const tile = to + (row / kTileRows * chunks + input / kChunk) * SplitInputs::kBytes +
                          (row % kTileRows * kChunk + input % kChunk) * 2;
#pragma unroll
    for (int p = 0; p < 3; ++p) {
      *reinterpret_cast<uint2*>(tile + p * SplitInputs::kPlane) =
          make_uint2(TruncatePairToBf16(rest[0], rest[1]), TruncatePairToBf16(rest[2], rest[3]));
#pragma unroll
      for (int e = 0; e < 4; ++e) rest[e] = FiniteBf16Remainder(rest[e]);
    }
  }
};

// Quantizes x to int8 with one scale per chunk. One warp per chunk of a row.
__global__ void __launch_bounds__(kThreads)
    QuantizeRows(const float* x, int64_t rows, int64_t in, int64_t chunks, uint8_t* to) {
  LaunchDependentGrids();
  WaitOnDependentGrids();
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (at >= rows * chunks) return;
  const int lane = threadIdx.x % 32;
  const int64_t row = at / chunks, chunk = at % chunks, i = chunk * kChunk + lane;
  const float value = i < in ? x[row * in + i] : 0.0f;
  const QuantizedGroup rounded = QuantizeGroup(value);
  uint8_t* const tile = to + (row / kTileRows * chunks + chunk) * QuantizedInputs::kBytes;
  tile[row % kTileRows * kChunk + lane] = static_cast<uint8_t>(static_cast<int8_t>(rounded.q));
  if (lane == 0) {
    auto* const scales = reinterpret_cast<float*>(tile + kTileRows * kChunk);
    scales[row % kTileRows] = rounded.scale;
    scales[kTileRows + row % kTileRows] = rounded.scale * static_cast<float>(rounded.sum);
  }
}

bool Packed(GemmWeightFormat kind) {
  return kind == GemmWeightFormat::kPacked8 || kind == GemmWeightFormat::kPacked4;
}

int64_t Chunks(int64_t in) { return (in + kChunk - 1) / kChunk; }

// Blocks read up to the padded number of rows; the workspace holds anything there.
int64_t Padded(int64_t rows) { return (rows + kBlockRows - 1) / kBlockRows * kBlockRows; }

constexpr int64_t kEnoughBlocks = 128;   // that fill a GPU's multiprocessors
constexpr int64_t kMaxSkinnyRows = 192;  // above it, MultistageKernel

size_t WorkspaceBytes(GemmWeightFormat kind, int64_t rows, int64_t in) {
  const int64_t bytes = Packed(kind) ? QuantizedInputs::kBytes : SplitInputs::kBytes;
  // Copies of whole stages run past the last row.
  const int64_t chunks = Padded(rows) / kTileRows * Chunks(in) + kStageChunks;
  return static_cast<size_t>(chunks * bytes);
}

KernelStatus Prepare(const MixedInputGemm& p, uint8_t* data, cudaStream_t stream, PackedX* rows) {
  const int64_t chunks = Chunks(p.in);
  *rows = {p.rows, static_cast<int>(chunks), data};
  if (!Packed(p.kind)) {
    return ForEach(p.rows * chunks * kChunk / 4, SplitRows{p.x, p.in, chunks, data}, stream, p.op);
  }
  const int64_t blocks = (p.rows * chunks + kWarps - 1) / kWarps;
  return LaunchWithPdl(QuantizeRows, dim3(static_cast<unsigned>(blocks)), kThreads, 0, stream, p.op,
                       p.x, p.rows, p.in, chunks, data);
}

template <GemmWeightFormat kind, int kTiles, int kOut>
KernelStatus LaunchSkinny(const MixedInputGemm& p, const Matrices& m, const PackedX& x,
                          cudaStream_t stream) {
  constexpr int64_t kRows = kTiles * kTileRows;
  const dim3 grid(static_cast<unsigned>((p.rows + kRows - 1) / kRows),
                  static_cast<unsigned>((m.tiles + kOut - 1) / kOut));
  return LaunchWithPdl(SkinnyKernel<kind, kTiles, kOut>, grid, kThreads, 0, stream, p.op, m, x,
                       p.activation);
}

int64_t Across(const Matrices& m) { return (m.tiles + kWarps - 1) / kWarps; }
int64_t Down(const MixedInputGemm& p) { return (p.rows + kBlockRows - 1) / kBlockRows; }

template <GemmWeightFormat kind>
KernelStatus LaunchMultistage(const MixedInputGemm& p, const Matrices& m, const PackedX& x,
                              cudaStream_t stream) {
  constexpr size_t kBytes = MultistageShape<kind>::kBytes;
  const auto kernel = MultistageKernel<kind>;
  ESPALIER_KERNEL_RETURN_IF_ERROR(
      CudaStatus(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      static_cast<int>(kBytes)),
                 p.op));
  const dim3 grid(static_cast<unsigned>(Down(p)), static_cast<unsigned>(Across(m)));
  return LaunchWithPdl(kernel, grid, kThreads, kBytes, stream, p.op, m, x, p.activation);
}

template <GemmWeightFormat kind>
KernelStatus Choose(const MixedInputGemm& p, const Matrices& m, const PackedX& x,
                    cudaStream_t stream) {
  if constexpr (kind != GemmWeightFormat::kF32) {
    if (m.whole && p.rows > kMaxSkinnyRows && Across(m) * Down(p) >= kEnoughBlocks) {
      return LaunchMultistage<kind>(p, m, x, stream);
    }
  }
  if (p.rows <= kTileRows) return LaunchSkinny<kind, 1, 1>(p, m, x, stream);
  // Few outputs would give too few blocks with larger tiles.
  const bool narrow = p.rows <= 4 * kTileRows && m.tiles <= kEnoughBlocks;
  if (p.rows <= 2 * kTileRows || narrow) return LaunchSkinny<kind, 2, 1>(p, m, x, stream);
  return LaunchSkinny<kind, 4, 2>(p, m, x, stream);
}

}  // namespace mixed_input_gemm

size_t MixedInputGemmWorkspace(GemmWeightFormat kind, int64_t rows, int64_t in) {
  return mixed_input_gemm::WorkspaceBytes(kind, rows, in);
}

KernelStatus RunMixedInputGemm(const MixedInputGemm& problem, void* workspace,
                               cudaStream_t stream) {
  using namespace mixed_input_gemm;
  Matrices m{};
  m.in = problem.in;
  m.whole = Packed(problem.kind) || problem.in % kChunk == 0;
  for (int i = 0; i < problem.count; ++i) {
    const MixedInputGemmWeight& product = problem.products[i];
    m.matrices[i] = {static_cast<const uint8_t*>(product.weights), product.bias, product.y,
                     product.out, m.tiles};
    m.tiles += (product.out + kTileOutputs - 1) / kTileOutputs;
    m.whole = m.whole && reinterpret_cast<uintptr_t>(product.weights) % 16 == 0;
  }
  m.count = problem.count;
  if (problem.rows == 0 || m.tiles == 0) return KernelStatus::Ok();
  PackedX x;
  ESPALIER_KERNEL_RETURN_IF_ERROR(Prepare(problem, static_cast<uint8_t*>(workspace), stream, &x));
  switch (problem.kind) {
    case GemmWeightFormat::kF32:
      return Choose<GemmWeightFormat::kF32>(problem, m, x, stream);
    case GemmWeightFormat::kBF16:
      return Choose<GemmWeightFormat::kBF16>(problem, m, x, stream);
    case GemmWeightFormat::kF16:
      return Choose<GemmWeightFormat::kF16>(problem, m, x, stream);
    case GemmWeightFormat::kPacked8:
      return Choose<GemmWeightFormat::kPacked8>(problem, m, x, stream);
    case GemmWeightFormat::kPacked4:
      return Choose<GemmWeightFormat::kPacked4>(problem, m, x, stream);
  }
  return KernelStatus::Ok();
}

KernelStatus RunMixedInputGemm(const char* op, GemmWeightFormat kind, Activation activation,
                               const KernelArgs& args) {
  const size_t count = args.outputs.size(), each = args.inputs.size() / count;
  const TensorView& x = args.inputs[0];
  for (size_t first = 0; first < count; first += MixedInputGemm::kMaxProducts) {
    MixedInputGemm problem;
    problem.op = op;
    problem.kind = kind;
    problem.activation = activation;
    problem.rows = RowsOf(x.dims());
    problem.in = x.dims().back();
    problem.x = x.as<float>();
    for (size_t i = first; i < std::min(count, first + MixedInputGemm::kMaxProducts); ++i) {
      const size_t bias = i * each + 2;
      problem.products[problem.count++] = {
          args.inputs[i * each + 1].data,
          each > 2 && Has(args.inputs, bias) ? args.inputs[bias].as<float>() : nullptr,
          args.outputs[i].as<float>(), args.outputs[i].dims().back()};
    }
    ESPALIER_KERNEL_RETURN_IF_ERROR(RunMixedInputGemm(problem, args.workspace, StreamOf(args)));
  }
  return KernelStatus::Ok();
}

}  // namespace espalier
