// A product's inputs are chunks of 32, and the chunks eight parts. Within a chunk the tensor cores
// add up; chunks are added in order to the sum of their part, and parts from first to last. Kernels
// for few and for many rows differ in which warp does that for which elements, and in nothing else.
#include <algorithm>
#include <cstdint>

#include "ops/cuda/register.h"
#include "ops/cuda/round_group.cuh"
#include "ops/cuda/row_formats.cuh"
#include "ops/cuda/row_products.h"
#include "ops/cuda/row_products_many.cuh"

namespace espalier {
namespace row_products {

constexpr int kPitch = 20;  // floats from row to row of 16 outputs in shared memory

// Chunks that a warp reads ahead, of the weights and of x: what the registers of so many blocks
// hold.
struct Depth {
  int weights, x, blocks;
};
constexpr Depth DepthOf(RowWeights kind, int tiles) {
  switch (kind) {
    case RowWeights::kPacked8:
      return tiles == 1 ? Depth{6, 3, 2} : Depth{4, 2, 2};
    case RowWeights::kPacked4:
      return tiles == 1 ? Depth{6, 2, 3} : Depth{4, 2, 2};
    case RowWeights::kBF16:
    case RowWeights::kF16:
      return tiles == 1 ? Depth{4, 2, 2} : Depth{2, 2, 2};
    case RowWeights::kF32:
      return tiles == 1 ? Depth{2, 2, 2} : Depth{2, 1, 2};
  }
  return {2, 2, 1};
}

// Up to 8 kTiles rows: the warps of a block have the same 16 outputs and one part of the inputs
// each.
template <RowWeights kind, int kTiles>
__global__ void __launch_bounds__(kThreads, DepthOf(kind, kTiles).blocks)
    FewKernel(Matrices m, Rows x, Activation activation) {
  using F = Format<kind>;
  using Inputs = typename F::Inputs;
  constexpr int kRows = kTiles * kTileRows;
  constexpr int kAhead = DepthOf(kind, kTiles).weights, kAheadX = DepthOf(kind, kTiles).x;
  static_assert(kAhead % 2 == 0 && kAhead % kAheadX == 0, "cursors stand at even chunks");
  __shared__ float parts[kParts][kRows][kPitch];
  static_assert(kParts == kWarps);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const Piece& piece = PieceOf(m, blockIdx.x);
  const int64_t tile = blockIdx.x - piece.first_tile;
  const int begin = BeginOf(x.chunks, warp), end = BeginOf(x.chunks, warp + 1);

  typename F::Cursor cursor(m, piece, tile, lane);
  cursor.Advance(begin);
  typename F::Raw raw[kAhead];
  LaunchNext();
#pragma unroll
  for (int u = 0; u < kAhead; ++u) {
    if (begin + u < end) raw[u] = F::Load(cursor, u);
  }
  AwaitPrevious();
  constexpr int kBytes = Inputs::kBytes;
  typename Inputs::Cursor x_cursor(x.data + static_cast<int64_t>(begin) * kBytes, lane);
  const int of_tile = x.chunks * kBytes;
  Inputs inputs[kAheadX][kTiles];
  const auto load_inputs = [&](int n, Inputs(&to)[kTiles]) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) to[i].Load(x_cursor, n * kBytes + i * of_tile);
  };
#pragma unroll
  for (int u = 0; u < kAheadX; ++u) {
    if (begin + u < end) load_inputs(u, inputs[u]);
  }
  float sums[kTiles][4] = {};
  const auto add = [&](int u, const typename F::Weights& weights) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) F::Add(weights, inputs[u % kAheadX][i], sums[i]);
  };
  int chunk = begin;
  // While there are as many chunks again behind those that have been read, nothing is asked.
  for (; chunk + 2 * kAhead <= end; chunk += kAhead) {
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      const typename F::Weights weights = F::Unpack(raw[u], lane);
      raw[u] = F::Load(cursor, kAhead + u);
      add(u, weights);
      load_inputs(kAheadX + u, inputs[u % kAheadX]);
    }
    cursor.Advance(kAhead);
    x_cursor.Advance(kAhead * kBytes);
  }
  for (; chunk < end; chunk += kAhead) {
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      const int here = chunk + u;
      if (here >= end) break;
      const typename F::Weights weights = F::Unpack(raw[u], lane);
      if (here + kAhead < end) raw[u] = F::Load(cursor, kAhead + u);
      add(u, weights);
      if (here + kAheadX < end) load_inputs(kAheadX + u, inputs[u % kAheadX]);
    }
    cursor.Advance(kAhead);
    x_cursor.Advance(kAhead * kBytes);
  }
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      parts[warp][i * kTileRows + 2 * t + e % 2][g + e / 2 * 8] = sums[i][e];
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kRows * kTileOutputs; i += kThreads) {
    const int output = i % kTileOutputs, row = i / kTileOutputs;
    float sum = 0;
#pragma unroll
    for (int p = 0; p < kParts; ++p) sum += parts[p][row][output];
    Finish(piece, x, activation, row, tile * kTileOutputs + output, sum);
  }
}

// Each input as the sum of three bf16 numbers, cut off one after the other: exact, but for numbers
// below 2^-110. Thread i has inputs 4 i to 4 i + 3 of the padded rows.
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
          make_uint2(UpperHalves(rest[0], rest[1]), UpperHalves(rest[2], rest[3]));
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        // Of an infinity nothing is left.
        const bool finite = isfinite(__uint_as_float(rest[e]));
        rest[e] = finite ? Rest(rest[e]) : 0u;
      }
    }
  }
};

// One warp for each chunk of a row: 8 bits with the sign, times a scale.
__global__ void __launch_bounds__(kThreads)
    RoundRows(const float* x, int64_t rows, int64_t in, int64_t chunks, uint8_t* to) {
  LaunchNext();
  AwaitPrevious();
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (at >= rows * chunks) return;
  const int lane = threadIdx.x % 32;
  const int64_t row = at / chunks, chunk = at % chunks, i = chunk * kChunk + lane;
  const float value = i < in ? x[row * in + i] : 0.0f;
  const RoundedGroup rounded = RoundGroup(value);
  uint8_t* const tile = to + (row / kTileRows * chunks + chunk) * RoundedInputs::kBytes;
  tile[row % kTileRows * kChunk + lane] = static_cast<uint8_t>(static_cast<int8_t>(rounded.q));
  if (lane == 0) {
    auto* const scales = reinterpret_cast<float*>(tile + kTileRows * kChunk);
    scales[row % kTileRows] = rounded.scale;
    scales[kTileRows + row % kTileRows] = rounded.scale * static_cast<float>(rounded.sum);
  }
}

bool Packed(RowWeights kind) {
  return kind == RowWeights::kPacked8 || kind == RowWeights::kPacked4;
}

int64_t Chunks(int64_t in) { return (in + kChunk - 1) / kChunk; }

// Rows that a block reads beyond the last are those of the workspace, whatever it holds.
int64_t Padded(int64_t rows) { return (rows + kMostTileRows - 1) / kMostTileRows * kMostTileRows; }

// Of a GPU's multiprocessors. Where blocks share products there are fewer.
constexpr int64_t kEnoughBlocks = 128;

struct Layout {
  WorkspaceLayout all;
  size_t data = 0, sums = 0;

  Layout(RowWeights kind, int64_t rows, int64_t in, int64_t out) {
    const int64_t bytes = Packed(kind) ? RoundedInputs::kBytes : SplitInputs::kBytes;
    // Copies of whole stages end behind the last row.
    const int64_t chunks = Padded(rows) / kTileRows * Chunks(in) + PerStage(kind);
    data = all.Add(static_cast<size_t>(chunks * bytes));
    const int64_t tiles = (out + kTileOutputs - 1) / kTileOutputs + RowProducts::kMost + kWarps;
    const int64_t elements = std::min(kEnoughBlocks * kWarps * kMostTileRows * kTileOutputs,
                                      tiles * kTileOutputs * Padded(rows));
    sums = all.Add(static_cast<size_t>(kParts * elements) * sizeof(float));
  }
};

KernelStatus Prepare(const RowProducts& p, uint8_t* data, cudaStream_t stream, Rows* rows) {
  const int64_t chunks = Chunks(p.in);
  *rows = {p.rows, static_cast<int>(chunks), data};
  if (!Packed(p.kind)) {
    return ForEach(p.rows * chunks * kChunk / 4, SplitRows{p.x, p.in, chunks, data}, stream, p.op);
  }
  const int64_t blocks = (p.rows * chunks + kWarps - 1) / kWarps;
  return LaunchOverlapping(RoundRows, dim3(static_cast<unsigned>(blocks)), kThreads, 0, stream,
                           p.op, p.x, p.rows, p.in, chunks, data);
}

template <RowWeights kind, int kTiles>
KernelStatus LaunchFew(const RowProducts& p, const Matrices& m, const Rows& x,
                       cudaStream_t stream) {
  return LaunchOverlapping(FewKernel<kind, kTiles>, dim3(static_cast<unsigned>(m.tiles)), kThreads,
                           0, stream, p.op, m, x, p.activation);
}

template <RowWeights kind, int kTiles>
KernelStatus LaunchMany(const RowProducts& p, const Matrices& m, const Rows& x, char* sums,
                        cudaStream_t stream) {
  constexpr size_t kBytes = ManyBytes<kind, kTiles>();
  const auto kernel = ManyKernel<kind, kTiles>;
  ESPALIER_KERNEL_RETURN_IF_ERROR(
      CudaStatus(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      static_cast<int>(kBytes)),
                 p.op));
  const int64_t rows = kTiles * kTileRows;
  const int64_t across = (m.tiles + kWarps - 1) / kWarps, down = (p.rows + rows - 1) / rows;
  Shared shared;
  while (shared.parts > 1 && across * down * kParts / shared.parts < kEnoughBlocks) {
    shared.parts /= 2;
  }
  shared.sums = reinterpret_cast<float*>(sums);
  shared.rows = down * rows;
  shared.arrivals = p.arrivals;
  const dim3 grid(static_cast<unsigned>(across), static_cast<unsigned>(down),
                  static_cast<unsigned>(kParts / shared.parts));
  return LaunchOverlapping(kernel, grid, kThreads, kBytes, stream, p.op, m, x, p.activation,
                           shared);
}

template <RowWeights kind>
KernelStatus Choose(const RowProducts& p, const Matrices& m, const Rows& x, char* sums,
                    cudaStream_t stream) {
  if (p.rows <= kTileRows) return LaunchFew<kind, 1>(p, m, x, stream);
  if (p.rows <= 2 * kTileRows) return LaunchFew<kind, 2>(p, m, x, stream);
  if (p.rows <= 4 * kTileRows) return LaunchMany<kind, 4>(p, m, x, sums, stream);
  return LaunchMany<kind, 8>(p, m, x, sums, stream);
}

}  // namespace row_products

size_t RowProductsWorkspace(RowWeights kind, int64_t rows, int64_t in, int64_t out) {
  return row_products::Layout(kind, rows, in, out).all.bytes();
}

KernelStatus RunRowProducts(const RowProducts& problem, int64_t most_rows, void* workspace,
                            cudaStream_t stream) {
  using namespace row_products;
  Matrices m{};
  m.in = problem.in;
  m.whole = problem.in % kChunk == 0;
  for (int i = 0; i < problem.count; ++i) {
    const RowProduct& product = problem.products[i];
    m.pieces[i] = {static_cast<const uint8_t*>(product.weights), product.bias, product.y,
                   product.out, m.tiles};
    m.tiles += (product.out + kTileOutputs - 1) / kTileOutputs;
    m.whole = m.whole && reinterpret_cast<uintptr_t>(product.weights) % 16 == 0;
  }
  m.count = problem.count;
  if (problem.rows == 0 || m.tiles == 0) return KernelStatus::Ok();
  int64_t out = 0;
  for (int i = 0; i < problem.count; ++i) out += problem.products[i].out;
  const Layout layout(problem.kind, most_rows, problem.in, out);
  Rows x;
  auto* const data = static_cast<uint8_t*>(workspace) + layout.data;
  ESPALIER_KERNEL_RETURN_IF_ERROR(Prepare(problem, data, stream, &x));
  char* const sums = static_cast<char*>(workspace) + layout.sums;
  switch (problem.kind) {
    case RowWeights::kF32:
      return Choose<RowWeights::kF32>(problem, m, x, sums, stream);
    case RowWeights::kBF16:
      return Choose<RowWeights::kBF16>(problem, m, x, sums, stream);
    case RowWeights::kF16:
      return Choose<RowWeights::kF16>(problem, m, x, sums, stream);
    case RowWeights::kPacked8:
      return Choose<RowWeights::kPacked8>(problem, m, x, sums, stream);
    case RowWeights::kPacked4:
      return Choose<RowWeights::kPacked4>(problem, m, x, sums, stream);
  }
  return KernelStatus::Ok();
}

KernelStatus RunRowProducts(DeviceContexts& contexts, const char* op, RowWeights kind,
                            Activation activation, int64_t most_rows, const KernelArgs& args) {
  DeviceContext* context = nullptr;
  ESPALIER_KERNEL_RETURN_IF_ERROR(contexts.Current(&context));
  const size_t count = args.outputs.size(), each = args.inputs.size() / count;
  const TensorView& x = args.inputs[0];
  for (size_t first = 0; first < count; first += RowProducts::kMost) {
    RowProducts problem;
    problem.op = op;
    problem.kind = kind;
    problem.activation = activation;
    problem.arrivals = context->arrivals();
    problem.rows = RowsOf(x.dims());
    problem.in = x.dims().back();
    problem.x = x.as<float>();
    for (size_t i = first; i < std::min(count, first + RowProducts::kMost); ++i) {
      const size_t bias = i * each + 2;
      problem.products[problem.count++] = {
          args.inputs[i * each + 1].data,
          each > 2 && Has(args.inputs, bias) ? args.inputs[bias].as<float>() : nullptr,
          args.outputs[i].as<float>(), args.outputs[i].dims().back()};
    }
    ESPALIER_KERNEL_RETURN_IF_ERROR(
        RunRowProducts(problem, most_rows, args.workspace, StreamOf(args)));
  }
  return KernelStatus::Ok();
}

}  // namespace espalier
