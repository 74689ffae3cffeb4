// Benchmarks of the kernels on the shapes of a small language model.
//   bazel run --config=release //ops/cpu:kernels_benchmark
// flops/s counts multiplications and additions; bytes/s counts the weights only (serving).
// QuantizedWeights/isa/bits/rows: matrices of 8 or 4 bits read from memory by an instruction set
// (1 is AVX2, 2 AVX-512 VNNI, 3 AMX).
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <memory>

#include "ops/cpu/gemm/quantized_gemm.h"
#include "ops/cpu/register_all.h"
#include "ops/cpu/threading/parallel.h"

namespace espalier {
namespace {

// One kernel with operands of ones.
class Bench {
 public:
  Bench(const std::string& op, Attributes attributes, const std::vector<Dims>& inputs,
        const std::vector<Dims>& outputs, bool batch_invariant = false) {
    KernelSpec spec{op, std::move(attributes), {}, {}, batch_invariant};
    for (const Dims& dims : inputs) inputs_.push_back(View(dims));
    for (const Dims& dims : outputs) outputs_.push_back(View(dims));
    for (const TensorView& view : inputs_) spec.inputs.push_back(view.spec);
    for (const TensorView& view : outputs_) spec.outputs.push_back(view.spec);
    KernelRegistry registry;
    RegisterCpuKernels(registry);
    std::string error;
    kernel_ = registry.Create(spec, &error);
    if (kernel_ == nullptr) std::abort();
    workspace_.reset(std::aligned_alloc(64, (kernel_->workspace_bytes() + 127) / 64 * 64));
    args_.inputs = inputs_;
    args_.outputs = outputs_;
    args_.workspace = workspace_.get();
  }

  void Run(benchmark::State& state, double flops, double bytes = 0) {
    for (auto _ : state) {
      if (!kernel_->Run(args_).ok()) state.SkipWithError("failed");
    }
    using benchmark::Counter;
    if (flops > 0) state.counters["flops/s"] = Counter(flops, Counter::kIsIterationInvariantRate);
    if (bytes > 0) state.counters["bytes/s"] = Counter(bytes, Counter::kIsIterationInvariantRate);
  }

 private:
  TensorView View(const Dims& dims) {
    if (dims.empty()) return {};
    data_.push_back(std::vector<float>(NumElements(dims), 0.01f));
    return {data_.back().data(), TensorSpec::Whole({DType::kF32, dims})};
  }

  struct Free {
    void operator()(void* p) const { std::free(p); }
  };

  std::vector<std::vector<float>> data_;
  std::vector<TensorView> inputs_, outputs_;
  std::unique_ptr<Kernel> kernel_;
  std::unique_ptr<void, Free> workspace_;
  KernelArgs args_;
};

void LinearForward(benchmark::State& state) {
  const int64_t m = state.range(0), in = state.range(1), out = state.range(2);
  Bench bench("linear", {}, {{m, in}, {out, in}}, {{m, out}});
  bench.Run(state, 2.0 * static_cast<double>(m * in * out));
}
BENCHMARK(LinearForward)->Args({2048, 256, 1024})->Args({2048, 1024, 256})->UseRealTime();

void LinearBackward(benchmark::State& state) {
  const int64_t m = state.range(0), in = state.range(1), out = state.range(2);
  Bench bench("linear_grad", {}, {{m, in}, {out, in}, {}, {}, {m, out}}, {{m, in}, {out, in}, {}});
  bench.Run(state, 4.0 * static_cast<double>(m * in * out));
}
BENCHMARK(LinearBackward)->Args({2048, 256, 1024})->Args({2048, 1024, 256})->UseRealTime();

void LinearBatchInvariant(benchmark::State& state) {
  const int64_t m = state.range(0), in = state.range(1), out = state.range(2);
  Bench bench("linear", {}, {{m, in}, {out, in}}, {{m, out}}, true);
  bench.Run(state, 2.0 * static_cast<double>(m * in * out), 4.0 * static_cast<double>(in * out));
}
BENCHMARK(LinearBatchInvariant)->ArgsProduct({{1, 8, 32, 256}, {256}, {1024}})->UseRealTime();
BENCHMARK(LinearBatchInvariant)->ArgsProduct({{1, 8, 32, 256}, {4096}, {4096}})->UseRealTime();

void QuantizedWeights(benchmark::State& state) {
  const auto isa = static_cast<QuantizedIsa>(state.range(0));
  if (isa > BestQuantizedIsa()) {
    state.SkipWithError("this CPU has no such instructions");
    return;
  }
  const int64_t rows = state.range(2);
  const PackedWeights shape{static_cast<int>(state.range(1)), 5632, 2048};
  const int64_t bytes = shape.blocks() * shape.block_bytes();
  const int64_t matrices = (int64_t{256} << 20) / bytes;  // more than caches hold
  const std::vector<uint8_t> weights(static_cast<size_t>(matrices * bytes), 0x33);
  const std::vector<float> x(static_cast<size_t>(rows * shape.in), 0.01f);
  std::vector<float> y(static_cast<size_t>(rows * shape.out));
  std::vector<int32_t> memory(QuantizedRows::Bytes(rows, shape.groups()) / sizeof(int32_t));
  const QuantizedRows rounded = QuantizedRows::At(memory.data(), rows, shape.groups());
  for (auto _ : state) {
    for (int64_t m = 0; m < matrices; ++m) {
      QuantizeRows(isa, x.data(), shape.in, rounded);
      ParallelRanges(shape.blocks(), kPackOutputs * shape.in, [&](int64_t begin, int64_t end) {
        QuantizedGemm(isa, shape, weights.data() + m * bytes, rounded, begin, end, y.data());
      });
    }
  }
  using benchmark::Counter;
  const auto all = static_cast<double>(matrices);
  state.counters["bytes/s"] =
      Counter(all * static_cast<double>(bytes), Counter::kIsIterationInvariantRate);
  state.counters["flops/s"] = Counter(2.0 * all * static_cast<double>(rows * shape.in * shape.out),
                                      Counter::kIsIterationInvariantRate);
}
BENCHMARK(QuantizedWeights)->ArgsProduct({{1, 2, 3}, {8, 4}, {1, 3, 7, 16}})->UseRealTime();

void AttentionForward(benchmark::State& state) {
  const int64_t b = state.range(0), s = state.range(1), h = state.range(2), d = state.range(3);
  Bench bench("attention", {{"head_dim", d}, {"causal", true}},
              {{b, s, h * d}, {b, s, h * d}, {b, s, h * d}}, {{b, s, h * d}});
  bench.Run(state, 2.0 * static_cast<double>(b * h * s * s * d));
}
BENCHMARK(AttentionForward)->Args({16, 128, 8, 32})->Args({8, 256, 4, 64})->UseRealTime();

void AttentionBackward(benchmark::State& state) {
  const int64_t b = state.range(0), s = state.range(1), h = state.range(2), d = state.range(3);
  const Dims dims = {b, s, h * d};
  Bench bench("attention_grad", {{"head_dim", d}, {"causal", true}}, {dims, dims, dims, {}, dims},
              {dims, dims, dims});
  bench.Run(state, 5.0 * static_cast<double>(b * h * s * s * d));
}
BENCHMARK(AttentionBackward)->Args({16, 128, 8, 32})->Args({8, 256, 4, 64})->UseRealTime();

void RmsNorm(benchmark::State& state) {
  Bench bench("rms_norm", {}, {{2048, 256}, {256}}, {{2048, 256}});
  bench.Run(state, 0, 2.0 * 4 * 2048 * 256);
}
BENCHMARK(RmsNorm)->UseRealTime();

void RmsNormBackward(benchmark::State& state) {
  Bench bench("rms_norm_grad", {}, {{2048, 256}, {256}, {2048, 256}}, {{2048, 256}, {256}});
  bench.Run(state, 0, 3.0 * 4 * 2048 * 256);
}
BENCHMARK(RmsNormBackward)->UseRealTime();

void Rotary(benchmark::State& state) {
  Bench bench("rotary", {{"head_dim", int64_t{32}}, {"theta", 1e4}}, {{16, 128, 256}},
              {{16, 128, 256}});
  bench.Run(state, 0, 2.0 * 4 * 2048 * 256);
}
BENCHMARK(Rotary)->UseRealTime();

void Conv2dForward(benchmark::State& state) {
  const std::vector<int64_t> ones = {1, 1}, pads = {1, 1, 1, 1};
  Bench bench("conv2d",
              {{"strides", ones}, {"pads", pads}, {"dilations", ones}, {"groups", int64_t{1}}},
              {{64, 32, 8, 8}, {64, 32, 3, 3}}, {{64, 64, 8, 8}});
  bench.Run(state, 2.0 * 64 * 64 * 64 * 32 * 9);
}
BENCHMARK(Conv2dForward)->UseRealTime();

void Conv2dBackward(benchmark::State& state) {
  const std::vector<int64_t> ones = {1, 1}, pads = {1, 1, 1, 1};
  Bench bench("conv2d_grad",
              {{"strides", ones}, {"pads", pads}, {"dilations", ones}, {"groups", int64_t{1}}},
              {{64, 32, 8, 8}, {64, 32, 3, 3}, {}, {}, {64, 64, 8, 8}},
              {{64, 32, 8, 8}, {64, 32, 3, 3}, {}});
  bench.Run(state, 4.0 * 64 * 64 * 64 * 32 * 9);
}
BENCHMARK(Conv2dBackward)->UseRealTime();

}  // namespace
}  // namespace espalier
