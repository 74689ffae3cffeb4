#include "tests/gpu/bench.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "ops/kernel/kernel.h"
#include "ops/kernel/packed_weights.h"
#include "tests/gpu/weight_formats.h"

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

  // Returns device memory filled with `value`, or with the integers of `given`.
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

  // Returns the seconds of one run, the mean over about a tenth of a second.
  double Time(const std::string& op, const Attributes& attributes, bool batch_invariant,
              const std::vector<TensorView>& inputs, const std::vector<TensorView>& outputs) {
    if (!error.empty()) return 1;
    KernelSpec spec;
    spec.op = op;
    spec.attributes = attributes;
    spec.batch_invariant = batch_invariant;
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
    // As a CUDA graph, as serving runs its steps, so that launch overhead does not count.
    constexpr int kRecorded = 20;
    for (int i = 0; i < 3 && error.empty(); ++i) Check(kernel->Run(args));
    uint64_t graph_id = 0;
    Check(plugin_->BeginCapture(device_));
    for (int i = 0; i < kRecorded && error.empty(); ++i) Check(kernel->Run(args));
    Check(plugin_->EndCapture(device_, &graph_id));
    if (!error.empty()) return 1;
    const auto run = [&](int times) {
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < times && error.empty(); ++i)
        Check(plugin_->LaunchGraph(device_, graph_id));
      Check(plugin_->Synchronize(device_));
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() /
             (times * kRecorded);
    };
    run(1);
    const double once = run(1);
    const double seconds = run(std::clamp(static_cast<int>(0.1 / (once * kRecorded)), 3, 1000));
    plugin_->DestroyGraph(device_, graph_id);
    return seconds;
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
        std::printf(
            "%-28s %8ld %8ld %8ld %12.1f %12.2f\n",
            (std::string(Name(dtype)) + (stable ? ", batch-invariant" : ", cuBLAS")).c_str(),
            static_cast<long>(rows), static_cast<long>(in), static_cast<long>(out), seconds * 1e6,
            2.0 * rows * in * out / seconds * 1e-12);
      }
    }
  }
}

// Products of serving: f32 rows with matrices in fewer bits.
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

// Queries of attention: tokens of that many sequences, the last tokens of a prompt, or a token
// tree.
enum class Attending { kSequences, kPrompt, kTree };

void PagedAttention(CudaPlugin* plugin, int device, std::string* error) {
  std::printf("%-28s %8s %8s %8s %12s %12s %12s\n", "paged_attention bf16", "rows", "context",
              "heads", "us", "GB/s of KV", "TFLOP/s");
  struct Shape {
    int64_t heads, kv_heads, dim;
  };
  struct Rows {
    Attending what;
    const char* name;
    int32_t rows;
  };
  for (const Shape& s : {Shape{32, 8, 128}, Shape{32, 4, 64}, Shape{16, 16, 64}}) {
    for (const Rows& r :
         {Rows{Attending::kSequences, "sequences", 1}, Rows{Attending::kSequences, "sequences", 16},
          Rows{Attending::kSequences, "sequences", 64}, Rows{Attending::kTree, "tree", 21},
          Rows{Attending::kPrompt, "prompt", 256}, Rows{Attending::kPrompt, "prompt", 1024}}) {
      for (int32_t context : {256, 2048, 8192}) {
        if (r.what == Attending::kPrompt && context < r.rows) continue;
        Bench bench(plugin, device);
        std::vector<int32_t> slots, sequences, prefixes, ancestors = {0}, ancestor_slots = {0};
        std::vector<int32_t> starts = {0}, lists;
        const int32_t lanes = r.what == Attending::kSequences ? r.rows : 1;
        for (int32_t sequence = 0; sequence < lanes; ++sequence) {
          for (int32_t t = 0; t < context; ++t) lists.push_back(sequence * context + t);
          starts.push_back((sequence + 1) * context);
        }
        int64_t seen = 0;  // sum over all rows of the keys they see
        for (int32_t i = 0; i < r.rows; ++i) {
          const bool tree = r.what == Attending::kTree;
          sequences.push_back(lanes > 1 ? i : 0);
          prefixes.push_back(r.what == Attending::kPrompt ? context - r.rows + 1 + i : context);
          slots.push_back(tree ? lanes * context + i : sequences[i] * context + prefixes[i] - 1);
          // The ancestors of node i of a binary tree, from the root on.
          std::vector<int32_t> path;
          for (int32_t node = tree ? i + 1 : 0; node > 0; node /= 2) {
            path.insert(path.begin(), context + node - 1);
          }
          ancestor_slots.insert(ancestor_slots.end() - 1, path.begin(), path.end());
          ancestors.push_back(static_cast<int32_t>(ancestor_slots.size()) - 1);
          seen += prefixes.back() + static_cast<int64_t>(path.size());
        }
        const int64_t cache = static_cast<int64_t>(lanes) * context + r.rows;
        const int64_t width = s.kv_heads * s.dim;
        const DType t = DType::kF32, kv = DType::kBF16;
        const std::vector<TensorView> inputs = {bench.Tensor(t, {r.rows, s.heads * s.dim}, 0.1),
                                                bench.Tensor(t, {r.rows, width}, 0.2),
                                                bench.Tensor(t, {r.rows, width}, 0.3),
                                                bench.Tensor(kv, {cache, width}, 0.2),
                                                bench.Tensor(kv, {cache, width}, 0.3),
                                                bench.Ints(slots),
                                                bench.Ints(sequences),
                                                bench.Ints(prefixes),
                                                bench.Ints(ancestors),
                                                bench.Ints(ancestor_slots),
                                                bench.Ints(starts),
                                                bench.Ints(lists)};
        const std::vector<TensorView> outputs = {bench.Tensor(t, {r.rows, s.heads * s.dim}, 0)};
        const double seconds = bench.Time("paged_attention", {{"head_dim", s.dim}, {"scale", 0.0}},
                                          true, inputs, outputs);
        if (!bench.error.empty()) {
          *error = bench.error;
          return;
        }
        std::printf("%-28s %8d %8d %8ld %12.1f %12.1f %12.2f\n",
                    (std::string(r.name) + ", " + std::to_string(s.heads) + " heads on " +
                     std::to_string(s.kv_heads) + ", " + std::to_string(s.dim) + " wide")
                        .c_str(),
                    r.rows, context, static_cast<long>(s.heads), seconds * 1e6,
                    2.0 * lanes * context * width * 2 / seconds * 1e-9,
                    4.0 * seen * s.heads * s.dim / seconds * 1e-12);
      }
    }
  }
}

}  // namespace

std::string RunBench(CudaPlugin* plugin, int device, const std::string& only) {
  if (const KernelStatus s = plugin->SetCurrent(device); !s.ok()) return s.error;
  using Measure = void (*)(CudaPlugin*, int, std::string*);
  const std::pair<const char*, Measure> all[] = {
      {"linear", Linear}, {"quantized_linear", Quantized}, {"paged_attention", PagedAttention}};
  std::string error;
  for (const auto& [name, measure] : all) {
    if (error.empty() && std::string(name).find(only) != std::string::npos) {
      measure(plugin, device, &error);
    }
  }
  return error;
}

}  // namespace espalier::gpu_check
