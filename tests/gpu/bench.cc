#include "tests/gpu/bench.h"

#include <chrono>
#include <cstdio>
#include <functional>
#include <vector>

#include "ops/kernel/kernel.h"
#include "ops/kernel/packed_weights.h"
#include "tests/gpu/weights.h"

namespace espalier::gpu_check {
namespace {

class Bench {
 public:
  Bench(CudaPlugin* plugin, int device) : plugin_(plugin), device_(device) {
    plugin_->RegisterKernels(&registry_);
  }
  ~Bench() {
    for (void* block : blocks_) plugin_->Free(device_, block);
  }

  // Device memory that holds `value` everywhere, or the integers of `given`.
  TensorView Tensor(DType dtype, Dims dims, double value) {
    TensorView view{nullptr, TensorSpec::Whole({dtype, std::move(dims)})};
    view.data = Allocate(view.spec.bytes());
    Check(plugin_->Fill(device_, view.data, dtype, view.num_elements(), value));
    return view;
  }
  TensorView Ints(const std::vector<int32_t>& given) {
    TensorView view{nullptr,
                    TensorSpec::Whole({DType::kI32, {static_cast<int64_t>(given.size())}})};
    view.data = Allocate(view.spec.bytes());
    Check(plugin_->CopyToDevice(device_, view.data, given.data(), view.spec.bytes()));
    return view;
  }

  // Seconds of one run, the mean of as many as fit in about a fifth of a second.
  double Time(const std::string& op, const Attributes& attributes, bool row_stable,
              const std::vector<TensorView>& inputs, const std::vector<TensorView>& outputs) {
    if (!error.empty()) return 1;
    KernelSpec spec;
    spec.op = op;
    spec.attributes = attributes;
    spec.row_stable = row_stable;
    for (const TensorView& v : inputs) spec.inputs.push_back(v.spec);
    for (const TensorView& v : outputs) spec.outputs.push_back(v.spec);
    const std::unique_ptr<Kernel> kernel = registry_.Create(spec, &error);
    if (kernel == nullptr) return 1;
    const KernelArgs args{inputs,
                          outputs,
                          Allocate(kernel->workspace_bytes()),
                          0,
                          0,
                          0,
                          true,
                          plugin_->Stream(device_)};
    const auto run = [&](int times) {
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < times && error.empty(); ++i) Check(kernel->Run(args));
      Check(plugin_->Synchronize(device_));
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    };
    run(3);
    const double once = run(5) / 5;
    const int times = static_cast<int>(std::min(1000.0, std::max(5.0, 0.2 / once)));
    return run(times) / times;
  }

  std::string error;

 private:
  void* Allocate(int64_t bytes) {
    void* data = nullptr;
    Check(plugin_->Allocate(device_, bytes, &data));
    blocks_.push_back(data);
    return data;
  }
  void Check(const KernelStatus& status) {
    if (!status.ok() && error.empty()) error = status.error;
  }

  CudaPlugin* plugin_;
  int device_;
  KernelRegistry registry_;
  std::vector<void*> blocks_;
};

void Linear(CudaPlugin* plugin, int device, std::string* error) {
  std::printf("%-28s %8s %8s %8s %12s %12s\n", "linear", "rows", "in", "out", "us", "TFLOP/s");
  for (DType dtype : {DType::kBF16, DType::kF32}) {
    for (bool stable : {false, true}) {
      for (int64_t rows : {1, 16, 64, 512, 8192}) {
        Bench bench(plugin, device);
        const int64_t in = 4096, out = 4096;
        const std::vector<TensorView> inputs = {bench.Tensor(dtype, {rows, in}, 0.37),
                                                bench.Tensor(dtype, {out, in}, 0.21)};
        const std::vector<TensorView> outputs = {bench.Tensor(dtype, {rows, out}, 0)};
        const double seconds = bench.Time("linear", {}, stable, inputs, outputs);
        if (!bench.error.empty()) {
          *error = bench.error;
          return;
        }
        std::printf("%-28s %8ld %8ld %8ld %12.1f %12.2f\n",
                    (std::string(Name(dtype)) + (stable ? ", row-stable" : ", cuBLAS")).c_str(),
                    static_cast<long>(rows), static_cast<long>(in), static_cast<long>(out),
                    seconds * 1e6, 2.0 * rows * in * out / seconds * 1e-12);
      }
    }
  }
}

// What serving multiplies: rows of f32 with matrices in fewer bits.
void Quantized(CudaPlugin* plugin, int device, std::string* error) {
  std::printf("%-28s %8s %8s %8s %12s %12s\n", "quantized_linear", "rows", "in", "out", "us",
              "TFLOP/s");
  const int64_t in = 4096, out = 14336;
  for (const Weights& weights : kNarrowWeights) {
    const PackedWeights packed{weights.bits, out, in};
    const Dims dims =
        weights.bits < 16 ? Dims{packed.blocks(), packed.block_bytes()} : Dims{out, in};
    for (int64_t rows : {1, 8, 21, 64, 128, 256, 1024}) {
      Bench bench(plugin, device);
      const std::vector<TensorView> inputs = {bench.Tensor(DType::kF32, {rows, in}, 0.37),
                                              bench.Tensor(weights.dtype, dims, 3)};
      const std::vector<TensorView> outputs = {bench.Tensor(DType::kF32, {rows, out}, 0)};
      const double seconds =
          bench.Time("quantized_linear", {{"bits", int64_t{weights.bits}}, {"out", out}}, true,
                     inputs, outputs);
      if (!bench.error.empty()) {
        *error = bench.error;
        return;
      }
      std::printf("%-28s %8ld %8ld %8ld %12.1f %12.2f\n", weights.Name().c_str(),
                  static_cast<long>(rows), static_cast<long>(in), static_cast<long>(out),
                  seconds * 1e6, 2.0 * rows * in * out / seconds * 1e-12);
    }
  }
}

void PagedAttention(CudaPlugin* plugin, int device, std::string* error) {
  std::printf("%-28s %8s %8s %8s %12s %12s\n", "paged_attention bf16", "rows", "context", "heads",
              "us", "GB/s of KV");
  const int64_t heads = 32, kv_heads = 8, dim = 128;
  for (int32_t rows : {1, 16, 64}) {
    for (int32_t context : {256, 2048, 8192}) {
      Bench bench(plugin, device);
      std::vector<int32_t> slots, sequences, prefixes, ancestors = {0}, starts = {0}, lists;
      for (int32_t r = 0; r < rows; ++r) {
        for (int32_t t = 0; t < context; ++t) lists.push_back(r * context + t);
        slots.push_back(r * context + context - 1);
        sequences.push_back(r);
        prefixes.push_back(context);
        ancestors.push_back(0);
        starts.push_back((r + 1) * context);
      }
      const int64_t cache = static_cast<int64_t>(rows) * context;
      const DType t = DType::kBF16;
      const std::vector<TensorView> inputs = {bench.Tensor(t, {rows, heads * dim}, 0.1),
                                              bench.Tensor(t, {rows, kv_heads * dim}, 0.2),
                                              bench.Tensor(t, {rows, kv_heads * dim}, 0.3),
                                              bench.Tensor(t, {cache, kv_heads * dim}, 0.2),
                                              bench.Tensor(t, {cache, kv_heads * dim}, 0.3),
                                              bench.Ints(slots),
                                              bench.Ints(sequences),
                                              bench.Ints(prefixes),
                                              bench.Ints(ancestors),
                                              bench.Ints({0}),
                                              bench.Ints(starts),
                                              bench.Ints(lists)};
      const std::vector<TensorView> outputs = {bench.Tensor(t, {rows, heads * dim}, 0)};
      const double seconds =
          bench.Time("paged_attention", {{"head_dim", dim}, {"scale", 0.0}}, true, inputs, outputs);
      if (!bench.error.empty()) {
        *error = bench.error;
        return;
      }
      std::printf("%-28s %8d %8d %8ld %12.1f %12.1f\n", "32 heads on 8, 128 wide", rows, context,
                  static_cast<long>(heads), seconds * 1e6,
                  2.0 * cache * kv_heads * dim * 2 / seconds * 1e-9);
    }
  }
}

}  // namespace

std::string RunBench(CudaPlugin* plugin, int device) {
  if (const KernelStatus s = plugin->SetCurrent(device); !s.ok()) return s.error;
  std::string error;
  Linear(plugin, device, &error);
  if (error.empty()) Quantized(plugin, device, &error);
  if (error.empty()) PagedAttention(plugin, device, &error);
  return error;
}

}  // namespace espalier::gpu_check
