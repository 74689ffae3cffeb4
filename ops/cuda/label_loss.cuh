// Shared by losses and metrics with labels: which labels count, their weights, and how values are
// reduced.
#pragma once

#include "ops/cuda/labels.cuh"
#include "ops/cuda/loss.cuh"

namespace espalier {

// Attributes `reduction`, `mean_over`, `count` and `ignore_index`; those that an operator does not
// have stand for the mean over all labels.
struct LabelReduction {
  bool none, sum, counted;
  double count;
  int64_t ignore_index;

  explicit LabelReduction(const Attributes& attributes)
      : none(attributes.String("reduction") == "none"),
        sum(attributes.String("reduction") == "sum"),
        counted(attributes.String("mean_over") == "counted"),
        count(static_cast<double>(attributes.Int("count", 1))),
        ignore_index(attributes.Int("ignore_index", -100)) {}
  // Returns whether the divisor is a sum over labels.
  bool Counts() const { return counted && !none && !sum; }
};

// Reads labels: returns -1 for an ignored label, and for one out of range, which one thread per
// label
// (`report`) reports as a fault.
struct LabelReader {
  Integers labels;
  int64_t classes;
  int64_t ignore_index;
  FaultSink faults;

  __device__ int64_t At(int64_t i, bool report) const {
    const int64_t label = labels[i];
    if (label == ignore_index) return -1;
    if (label >= 0 && label < classes) return label;
    if (report) faults.Report(FaultKind::kLabel, i, label, classes);
    return -1;
  }
};

// The weight of label i in the divisor.
struct LabelWeight {
  LabelReader labels;
  const float* weights;  // may be null: 1
  __device__ float operator()(int64_t i) const {
    const int64_t label = labels.At(i, false);
    if (label < 0) return 0.0f;
    return weights != nullptr ? weights[label] : 1.0f;
  }
};

struct StoreMean {
  float* result;
  const float* divisor;
  __device__ void operator()(int64_t, float sum) const { *result = sum / *divisor; }
};

// The gradient with respect to the value of label i.
struct LabelGradients {
  const float* dy;
  const float* divisor;  // on the device, or null
  double count;
  bool each;
  ExampleWeights examples;
  __device__ float operator[](int64_t i) const {
    if (each) return dy[i];
    const float factor = divisor != nullptr ? *dy / *divisor : static_cast<float>(*dy / count);
    return factor * examples[i];
  }
};

// Base class of the kernels. The workspace holds the values of all labels, the divisor, then
// Reduce's partial sums. Inputs are scores, labels, weights? (of losses alone), example_weights?;
// gradients also take dy, last.
class LabelLossKernel : public Kernel {
 public:
  // `example_weights` is the index of that input.
  LabelLossKernel(DeviceContexts& contexts, const KernelSpec& spec, const char* op,
                  size_t example_weights)
      : op_(op),
        example_weights_(example_weights),
        reduction_(spec.attributes),
        contexts_(contexts) {
    const int64_t labels = spec.inputs[1].num_elements();
    layout_.Add(labels * sizeof(float));
    divisor_ = layout_.Add(sizeof(float));
    partial_ = layout_.Add(OverAll(labels).WorkspaceBytes());
  }
  size_t workspace_bytes() const override { return layout_.bytes(); }

 protected:
  KernelStatus Labels(const KernelArgs& args, int64_t classes, LabelReader* labels) const {
    DeviceContext* context = nullptr;
    ESPALIER_KERNEL_RETURN_IF_ERROR(contexts_.Current(&context));
    *labels = {Integers::Of(args.inputs[1]), classes, reduction_.ignore_index, context->faults()};
    return KernelStatus::Ok();
  }

  // Memory for the value of each label.
  float* Values(const KernelArgs& args) const {
    return reduction_.none ? args.outputs[0].as<float>() : static_cast<float*>(args.workspace);
  }

  // Reduces the values.
  KernelStatus Finish(const KernelArgs& args, const LabelReader& labels,
                      const float* weights) const {
    if (reduction_.none) return KernelStatus::Ok();
    const ReduceShape all = OverAll(args.inputs[1].num_elements());
    const StoredValue values{Values(args), Examples(args, /*gradient=*/false)};
    float* out = args.outputs[0].as<float>();
    void* partial = WorkspaceAt(args, partial_);
    if (!reduction_.Counts()) {
      const double divisor = reduction_.sum ? 1.0 : reduction_.count;
      return Reduce(all, values, StoreQuotient{out, divisor}, partial, StreamOf(args), op_);
    }
    ESPALIER_KERNEL_RETURN_IF_ERROR(Count(args, labels, weights));
    return Reduce(all, values, StoreMean{out, WorkspaceAt<float>(args, divisor_)}, partial,
                  StreamOf(args), op_);
  }

  KernelStatus Gradients(const KernelArgs& args, const LabelReader& labels, const float* weights,
                         LabelGradients* gradients) const {
    *gradients = {args.inputs.back().as<float>(), nullptr, reduction_.sum ? 1.0 : reduction_.count,
                  reduction_.none, Examples(args, /*gradient=*/true)};
    if (!reduction_.Counts()) return KernelStatus::Ok();
    gradients->divisor = WorkspaceAt<float>(args, divisor_);
    return Count(args, labels, weights);
  }

  const char* op() const { return op_; }

 private:
  ExampleWeights Examples(const KernelArgs& args, bool gradient) const {
    return ExampleWeights::Of(args, example_weights_, gradient, args.inputs[1].num_elements());
  }

  KernelStatus Count(const KernelArgs& args, const LabelReader& labels,
                     const float* weights) const {
    return Reduce(OverAll(args.inputs[1].num_elements()), LabelWeight{labels, weights},
                  StoreQuotient{WorkspaceAt<float>(args, divisor_), 1.0},
                  WorkspaceAt(args, partial_), StreamOf(args), op_);
  }

  const char* const op_;
  const size_t example_weights_;
  const LabelReduction reduction_;
  DeviceContexts& contexts_;
  WorkspaceLayout layout_;
  size_t divisor_ = 0, partial_ = 0;
};

// Returns the class weights, input 2; null: 1. `gradient`: dy is the last input.
inline const float* ClassWeights(const KernelArgs& args, bool gradient) {
  const size_t inputs = args.inputs.size() - (gradient ? 1 : 0);
  return inputs > 2 && args.inputs[2].present() ? args.inputs[2].as<float>() : nullptr;
}

template <typename K, typename... Arguments>
KernelFactory LabelLossFactory(DeviceContexts& contexts, Arguments... arguments) {
  return [&contexts, arguments...](const KernelSpec& spec,
                                   std::string* refusal) -> std::unique_ptr<Kernel> {
    if (!TakesType(spec.inputs[0].dtype, {DType::kF32}, refusal)) return nullptr;
    return std::make_unique<K>(contexts, spec, arguments...);
  };
}

}  // namespace espalier
