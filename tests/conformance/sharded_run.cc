#include "tests/conformance/sharded_run.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/pcg/layout.h"
#include "planner/pcg/node_config.h"

namespace espalier::conformance {
namespace {

// Calls f(index in the whole tensor, index in the box) for every element of the box.
template <typename F>
void ForEachElement(const Dims& whole, const Region& box, const F& f) {
  const int64_t count = box.num_elements();
  for (int64_t i = 0; i < count; ++i) {
    int64_t rest = i, at = 0, stride = 1;
    for (size_t d = whole.size(); d-- > 0;) {
      at += (box.start[d] + rest % box.size[d]) * stride;
      rest /= box.size[d];
      stride *= whole[d];
    }
    f(at, i);
  }
}

// The box of a tensor that one shard holds.
HostTensor Cut(const HostTensor& whole, const Region& box) {
  if (!whole.present()) return {};
  HostTensor part = HostTensor::Zeros({whole.spec.dtype, box.size, box.start, whole.spec.dims});
  const size_t size = SizeOf(whole.spec.dtype);
  ForEachElement(whole.spec.dims, box, [&](int64_t from, int64_t to) {
    std::memcpy(part.bytes.data() + to * size, whole.bytes.data() + from * size, size);
  });
  return part;
}

// A tensor assembled from shards.
class Assembly {
 public:
  Assembly(const TensorType& type, Layout layout)
      : layout_(std::move(layout)),
        whole_(HostTensor::Zeros(TensorSpec::Whole(type))),
        sums_(Sums(layout_) ? whole_.spec.num_elements() : 0),
        known_(sums_.empty() ? whole_.spec.num_elements() : 0) {}

  // Adds elements that several shards hold.
  static bool Sums(const Layout& layout) {
    return layout.partials > 1 || layout.overlap == Overlap::kSummed;
  }

  HostTensor Empty(size_t part) const {
    const Region& box = layout_.shards[part].region;
    return HostTensor::Zeros({whole_.spec.dtype, box.size, box.start, whole_.spec.dims});
  }
  // Returns false if another shard has different bits of an element.
  bool Put(size_t index, const HostTensor& part) {
    const size_t size = SizeOf(whole_.spec.dtype);
    bool same = true;
    ForEachElement(whole_.spec.dims, layout_.shards[index].region, [&](int64_t to, int64_t from) {
      if (!sums_.empty()) {
        sums_[to] += ValueAt(part, from);
        return;
      }
      uint8_t* target = whole_.bytes.data() + to * size;
      const uint8_t* source = part.bytes.data() + from * size;
      same = same && (!known_[to] || std::memcmp(target, source, size) == 0);
      known_[to] = true;
      std::memcpy(target, source, size);
    });
    return same;
  }
  HostTensor Finish() {
    for (size_t i = 0; i < sums_.size(); ++i) SetValue(&whole_, static_cast<int64_t>(i), sums_[i]);
    return std::move(whole_);
  }

 private:
  Layout layout_;
  HostTensor whole_;
  std::vector<double> sums_;
  std::vector<bool> known_;
};

// Returns the inputs that entry `index` of a Gradient's list refers to.
std::vector<int> Expand(const OpDef& def, size_t num_inputs, int index) {
  std::vector<int> all{index};
  if (index < static_cast<int>(def.inputs.size()) && def.inputs[index].variadic) {
    for (int i = index + 1; i < static_cast<int>(num_inputs); ++i) all.push_back(i);
  }
  return all;
}

class ShardedRun {
 public:
  ShardedRun(gpu_check::Backend* backend, const OperatorRun& run, OperatorResult* result)
      : backend_(*backend), run_(run), def_(*run.def), result_(*result) {}

  std::string Run() {
    std::string error = MakeLayouts();
    if (error.empty()) error = RunForward();
    if (error.empty() && run_.output_gradients.has_value()) error = RunGradient();
    return error;
  }

 private:
  std::string MakeLayouts() {
    const absl::StatusOr<SplitRule> rule = CompleteSplitRule(def_, run_.types);
    if (!rule.ok()) return std::string(rule.status().message());
    std::vector<int> degrees(rule->axes.size(), 1);
    size_t known = 0;
    for (size_t a = 0; a < degrees.size(); ++a) {
      const auto it = run_.degrees.find(rule->axes[a].name);
      if (it == run_.degrees.end()) continue;
      ++known;
      degrees[a] = it->second;
      if (it->second < 1 || rule->axes[a].size % it->second != 0) {
        return absl::StrCat("axis '", it->first, "' of size ", rule->axes[a].size,
                            " cannot have degree ", it->second);
      }
    }
    if (known != run_.degrees.size()) {
      return absl::StrCat("operator '", def_.name,
                          "' lacks an axis to split, or has two of a name");
    }
    parts_ = std::accumulate(degrees.begin(), degrees.end(), size_t{1}, std::multiplies<>());
    std::vector<int> devices(parts_);
    std::iota(devices.begin(), devices.end(), 0);
    for (size_t i = 0; i < run_.inputs.size(); ++i) {
      inputs_.push_back(OperandLayout(run_.types.inputs[i].dims, rule->inputs[i], degrees, devices,
                                      /*output=*/false, HalosOf(*rule, static_cast<int>(i))));
    }
    for (size_t k = 0; k < run_.types.outputs.size(); ++k) {
      outputs_.push_back(OperandLayout(run_.types.outputs[k].dims, rule->outputs[k], degrees,
                                       devices, /*output=*/true));
    }
    return "";
  }

  std::string RunForward() {
    std::vector<Assembly> outputs, inputs;
    for (size_t k = 0; k < outputs_.size(); ++k) {
      outputs.emplace_back(run_.types.outputs[k], outputs_[k]);
    }
    for (size_t i = 0; i < inputs_.size(); ++i) {
      inputs.emplace_back(run_.types.inputs[i], inputs_[i]);
    }
    for (const Layout& layout : outputs_) result_.summed |= Assembly::Sums(layout);
    part_inputs_.resize(parts_);
    for (size_t part = 0; part < parts_; ++part) {
      for (size_t i = 0; i < inputs_.size(); ++i) {
        part_inputs_[part].push_back(Cut(run_.inputs[i], inputs_[i].shards[part].region));
      }
      std::vector<HostTensor> made;
      for (const Assembly& output : outputs) made.push_back(output.Empty(part));
      if (std::string e = RunKernel(def_.name, &part_inputs_[part], &made); !e.empty()) return e;
      for (size_t k = 0; k < made.size(); ++k) outputs[k].Put(part, made[k]);
      for (size_t i = 0; i < inputs.size(); ++i) {
        const HostTensor& after = part_inputs_[part][i];
        if (after.present() && !inputs[i].Put(part, after)) {
          return absl::StrCat("the replicas of input ", i, " differ after the run");
        }
      }
    }
    for (Assembly& output : outputs) {
      result_.outputs.push_back(output.Finish());
    }
    for (size_t i = 0; i < inputs.size(); ++i) {
      result_.inputs_after.push_back(run_.inputs[i].present() ? inputs[i].Finish() : HostTensor());
    }
    return "";
  }

  std::string RunGradient() {
    if (!def_.has_gradient()) return def_.name + " has no gradient";
    const Gradient& gradient = *def_.gradient;
    if (run_.output_gradients->size() != outputs_.size()) {
      return absl::StrCat(outputs_.size(), " output gradients are needed, one for each output");
    }
    std::vector<int> wanted;
    for (int index : gradient.differentiable) {
      for (int i : Expand(def_, run_.inputs.size(), index)) wanted.push_back(i);
    }
    std::map<int, Assembly> made;
    for (int i : wanted) {
      if (!Present(i)) continue;
      made.emplace(i, Assembly(run_.types.inputs[i], Dual(inputs_[i])));
      result_.summed = result_.summed || Assembly::Sums(Dual(inputs_[i]));
    }
    for (size_t part = 0; part < parts_; ++part) {
      std::vector<HostTensor> in, out;
      for (int index : gradient.needs_inputs) {
        for (int i : Expand(def_, run_.inputs.size(), index)) {
          in.push_back(Present(i) ? part_inputs_[part][i] : HostTensor());
        }
      }
      // As in a plan: results are complete sums, and every shard of a sum has its gradient.
      for (int k : gradient.needs_outputs) {
        in.push_back(Cut(result_.outputs[k], outputs_[k].shards[part].region));
      }
      for (size_t k = 0; k < outputs_.size(); ++k) {
        in.push_back(Cut((*run_.output_gradients)[k], outputs_[k].shards[part].region));
      }
      for (int i : wanted) out.push_back(Present(i) ? made.at(i).Empty(part) : HostTensor());
      if (std::string e = RunKernel(def_.name + "_grad", &in, &out); !e.empty()) return e;
      for (size_t k = 0; k < wanted.size(); ++k) {
        if (Present(wanted[k])) made.at(wanted[k]).Put(part, out[k]);
      }
    }
    for (auto& [i, assembly] : made) result_.input_gradients[i] = assembly.Finish();
    return "";
  }

  bool Present(int i) const {
    return i < static_cast<int>(run_.inputs.size()) && run_.inputs[i].present();
  }

  std::string RunKernel(const std::string& op, std::vector<HostTensor>* inputs,
                        std::vector<HostTensor>* outputs) {
    KernelSpec spec{op, run_.types.attributes, {}, {}, run_.batch_invariant};
    for (const HostTensor& t : *inputs) spec.inputs.push_back(t.spec);
    for (const HostTensor& t : *outputs) spec.outputs.push_back(t.spec);
    // Kernels must write every element of their outputs.
    for (HostTensor& t : *outputs) std::fill(t.bytes.begin(), t.bytes.end(), 0x5b);
    return backend_.Run(spec, run_.options, inputs, outputs);
  }

  gpu_check::Backend& backend_;
  const OperatorRun& run_;
  const OpDef& def_;
  OperatorResult& result_;
  size_t parts_ = 1;
  std::vector<Layout> inputs_, outputs_;
  std::vector<std::vector<HostTensor>> part_inputs_;  // after the forward run
};

}  // namespace

std::string Run(gpu_check::Backend* backend, const OperatorRun& run, OperatorResult* result) {
  return ShardedRun(backend, run, result).Run();
}

}  // namespace espalier::conformance
