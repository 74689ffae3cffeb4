// The kernel interface that a backend implements for an operator. Standard library only, because
// the CUDA plug-in, which is opened at run time and links neither Abseil nor protobuf, implements
// the same interface.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ops/kernel/attributes.h"
#include "ops/tensor/view.h"

namespace espalier {

// Success, or a sentence that says what was wrong and where. Reports only input-dependent failures
// (an index out of range, out of memory); the operator's definition has checked the shapes.
struct [[nodiscard]] KernelStatus {
  std::string error;

  bool ok() const { return error.empty(); }
  static KernelStatus Ok() { return {}; }
  static KernelStatus Error(std::string message) { return {std::move(message)}; }
};

// The node that a kernel is created for. Absent inputs and outputs have dtype kInvalid.
struct KernelSpec {
  std::string op;
  Attributes attributes;
  std::vector<TensorSpec> inputs;
  std::vector<TensorSpec> outputs;
  // Set in serving programs. The kernel must compute every row of the output (all but the last
  // dimension flattened) with one fixed order of summation, whatever the number of rows. Dimension
  // 0 of any view may be smaller at Run than in this spec.
  bool batch_invariant = false;
};

struct KernelArgs {
  std::span<const TensorView> inputs;
  std::span<const TensorView> outputs;
  void* workspace = nullptr;  // workspace_bytes() bytes, 64-byte aligned, contents undefined
  uint64_t seed = 0;  // of the job; random operators key Philox by (seed, node_key, step, element)
  uint64_t node_key = 0;   // stable identity of the logical node, the same on every shard
  int64_t step = 0;        // training step, from 0
  bool training = true;    // false in evaluation: affects dropout and batch norm
  void* stream = nullptr;  // cudaStream_t on CUDA, null on CPU
};

// The kernel of one instruction. Created when the program is loaded, then run every step from one
// thread.
class Kernel {
 public:
  virtual ~Kernel() = default;
  virtual size_t workspace_bytes() const { return 0; }
  virtual KernelStatus Run(const KernelArgs& args) = 0;
};

// Returns null and sets *refusal to a reason if the implementation does not support the spec.
using KernelFactory =
    std::function<std::unique_ptr<Kernel>(const KernelSpec& spec, std::string* refusal)>;

// Makes a stateless kernel.
template <typename Function>
std::unique_ptr<Kernel> MakeKernel(Function run, size_t workspace_bytes = 0) {
  class FunctionKernel : public Kernel {
   public:
    FunctionKernel(Function run, size_t bytes) : run_(std::move(run)), bytes_(bytes) {}
    size_t workspace_bytes() const override { return bytes_; }
    KernelStatus Run(const KernelArgs& args) override { return run_(args); }

   private:
    Function run_;
    size_t bytes_;
  };
  return std::make_unique<FunctionKernel>(std::move(run), workspace_bytes);
}

// The kernels of one backend: an ordered list per operator, of which the first that fits is used.
class KernelRegistry {
 public:
  void Add(const std::string& op, KernelFactory factory) {
    for (Entry& entry : entries_) {
      if (entry.op == op) {
        entry.factories.push_back(std::move(factory));
        return;
      }
    }
    entries_.push_back({op, {std::move(factory)}});
  }

  // Declares that in serving programs (batch_invariant) one kernel of `op` runs several
  // instructions that share their first input and all attributes except `may_differ` (horizontal
  // fusion). Inputs and outputs are concatenated instruction by instruction, with the same number
  // for each; attributes are those of the first.
  void SupportsHorizontalFusion(const std::string& op, std::vector<std::string> may_differ) {
    horizontal_fusion_.push_back({op, std::move(may_differ)});
  }

  // Returns `may_differ`, or null if `op` does not support horizontal fusion.
  const std::vector<std::string>* HorizontalFusion(const std::string& op) const {
    for (const auto& [name, may_differ] : horizontal_fusion_) {
      if (name == op) return &may_differ;
    }
    return nullptr;
  }

  // Returns null, and in *error the reason of every implementation, if none supports the spec.
  std::unique_ptr<Kernel> Create(const KernelSpec& spec, std::string* error) const {
    const Entry* found = nullptr;
    for (const Entry& entry : entries_) {
      if (entry.op == spec.op) found = &entry;
    }
    if (found == nullptr) {
      *error = "operator '" + spec.op + "' has no kernel on this backend";
      return nullptr;
    }
    std::string reasons;
    for (const KernelFactory& factory : found->factories) {
      std::string refusal;
      if (std::unique_ptr<Kernel> kernel = factory(spec, &refusal)) return kernel;
      reasons += (reasons.empty() ? "" : "; ") + refusal;
    }
    *error = "operator '" + spec.op + "': " + reasons;
    return nullptr;
  }

  bool Has(const std::string& op) const {
    for (const Entry& entry : entries_) {
      if (entry.op == op) return true;
    }
    return false;
  }

  std::vector<std::string> Ops() const {
    std::vector<std::string> names;
    for (const Entry& entry : entries_) names.push_back(entry.op);
    return names;
  }

 private:
  struct Entry {
    std::string op;
    std::vector<KernelFactory> factories;
  };
  std::vector<Entry> entries_;
  std::vector<std::pair<std::string, std::vector<std::string>>> horizontal_fusion_;
};

}  // namespace espalier
