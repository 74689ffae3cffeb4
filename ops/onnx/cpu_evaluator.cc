#include "ops/onnx/cpu_evaluator.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ops/cpu/register_all.h"
#include "ops/kernel/kernel.h"

namespace espalier {
namespace {

const KernelRegistry& Kernels() {
  static const KernelRegistry* const kernels = [] {
    auto* built = new KernelRegistry;
    RegisterCpuKernels(*built);
    return built;
  }();
  return *kernels;
}

// A turn of a loop reads little of a large constant: these read their inputs where they are, so
// that a loop takes no time for each turn and each byte of a constant.
bool ReadsInPlace(const std::string& op) { return op == "gather" || op == "slice"; }

// 64-byte aligned, never null.
class Buffer {
 public:
  explicit Buffer(size_t size) : bytes_(size + 64) {}
  char* data() {
    return reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(bytes_.data()) + 63) / 64 * 64);
  }

 private:
  std::vector<char> bytes_;
};

absl::StatusOr<std::vector<std::string>> Evaluate(const std::string& op, const NodeTypes& types,
                                                  const std::vector<const std::string*>& inputs,
                                                  bool training) {
  KernelSpec spec{op, types.attributes, {}, {}, false};
  std::vector<Buffer> buffers;
  std::vector<TensorView> in, out;
  for (size_t i = 0; i < types.inputs.size(); ++i) {
    spec.inputs.push_back(TensorSpec::Whole(types.inputs[i]));
    in.push_back({nullptr, spec.inputs.back()});
    if (inputs[i] == nullptr) continue;
    if (ReadsInPlace(op) && !inputs[i]->empty()) {
      in.back().data = const_cast<char*>(inputs[i]->data());
      continue;
    }
    // A copy: some kernels write their inputs.
    buffers.emplace_back(inputs[i]->size());
    std::copy(inputs[i]->begin(), inputs[i]->end(), buffers.back().data());
    in.back().data = buffers.back().data();
  }
  for (const TensorType& type : types.outputs) {
    spec.outputs.push_back(TensorSpec::Whole(type));
    out.push_back({nullptr, spec.outputs.back()});
    if (type.dtype == DType::kInvalid) continue;
    buffers.emplace_back(type.bytes());
    out.back().data = buffers.back().data();
  }
  std::string error;
  std::unique_ptr<Kernel> kernel = Kernels().Create(spec, &error);
  if (kernel == nullptr) return absl::UnimplementedError(error);
  Buffer workspace(kernel->workspace_bytes());
  KernelArgs args;
  args.inputs = in;
  args.outputs = out;
  args.workspace = workspace.data();
  args.training = training;
  if (KernelStatus status = kernel->Run(args); !status.ok()) {
    return absl::InvalidArgumentError(status.error);
  }
  std::vector<std::string> results;
  for (const TensorView& view : out) {
    results.emplace_back();
    if (view.present()) results.back().assign(view.as<char>(), view.spec.bytes());
  }
  return results;
}

}  // namespace

Evaluator CpuEvaluator(bool training) {
  return [training](const std::string& op, const NodeTypes& types,
                    const std::vector<const std::string*>& inputs) {
    return Evaluate(op, types, inputs, training);
  };
}

}  // namespace espalier
