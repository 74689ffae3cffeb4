// For tests: runs one operator and its gradient as the executor would, with types inferred by its
// definition, and compares gradients with finite differences.
#pragma once

#include <cmath>
#include <cstring>
#include <initializer_list>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "ops/cpu/element.h"
#include "ops/cpu/register_all.h"
#include "ops/operators/register_all.h"
#include "ops/schema/registry.h"

namespace espalier::testing {

struct TestTensor {
  TensorSpec spec;
  std::vector<char> bytes;

  TestTensor() = default;  // absent
  explicit TestTensor(TensorType type) : spec(TensorSpec::Whole(type)), bytes(type.bytes() + 64) {}
  TensorView view() { return {spec.dtype == DType::kInvalid ? nullptr : bytes.data(), spec}; }

  double at(int64_t i) const {
    double value = 0;
    WithElement(spec.dtype, [&](auto element) {
      using Element = decltype(element);
      value = static_cast<double>(
          Element::Value(reinterpret_cast<const typename Element::Storage*>(bytes.data())[i]));
    });
    return value;
  }
  void set(int64_t i, double value) {
    WithElement(spec.dtype, [&](auto element) {
      using Element = decltype(element);
      reinterpret_cast<typename Element::Storage*>(bytes.data())[i] = Element::From(value);
    });
  }
  std::vector<double> values() const {
    std::vector<double> all(spec.num_elements());
    for (size_t i = 0; i < all.size(); ++i) all[i] = at(static_cast<int64_t>(i));
    return all;
  }
};

inline TestTensor Tensor(DType dtype, Dims dims, const std::vector<double>& values) {
  TestTensor tensor(TensorType{dtype, std::move(dims)});
  for (size_t i = 0; i < values.size(); ++i) tensor.set(static_cast<int64_t>(i), values[i]);
  return tensor;
}

inline TestTensor RandomTensor(DType dtype, Dims dims, uint64_t seed, double low = -2, double high = 2) {
  TestTensor tensor(TensorType{dtype, std::move(dims)});
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> uniform(low, high);
  for (int64_t i = 0; i < tensor.spec.num_elements(); ++i) tensor.set(i, uniform(random));
  return tensor;
}

struct RunOptions {
  uint64_t seed = 7;
  uint64_t node_key = 11;
  int64_t step = 0;
  bool training = true;
};

class TestOp {
 public:
  explicit TestOp(std::string op, Attributes attributes = {})
      : op_(std::move(op)), attributes_(std::move(attributes)) {
    RegisterAllOperators(operators_);
    RegisterCpuKernels(kernels_);
  }

  // Types of the outputs for whole inputs; fixes the canonical attributes.
  absl::StatusOr<std::vector<TensorType>> Infer(const std::vector<TestTensor>& inputs) {
    NodeTypes types{attributes_, {}, {}};
    for (const TestTensor& input : inputs) types.inputs.push_back(input.spec.type());
    const OpDef* def = operators_.Find(op_);
    if (def == nullptr) return absl::NotFoundError(op_);
    if (absl::Status status = InferNode(*def, &types); !status.ok()) return status;
    attributes_ = types.attributes;
    return types.outputs;
  }

  absl::StatusOr<std::vector<TestTensor>> Forward(std::vector<TestTensor>& inputs,
                                                  const RunOptions& options = {}) {
    absl::StatusOr<std::vector<TensorType>> types = Infer(inputs);
    if (!types.ok()) return types.status();
    std::vector<TestTensor> outputs;
    for (const TensorType& type : *types) outputs.emplace_back(type);
    if (absl::Status status = Run(op_, inputs, outputs, options); !status.ok()) return status;
    return outputs;
  }

  // Gradients of the differentiable inputs; an absent output gradient is an empty TestTensor.
  absl::StatusOr<std::vector<TestTensor>> Backward(std::vector<TestTensor>& inputs,
                                                   std::vector<TestTensor>& outputs,
                                                   const std::vector<TestTensor>& output_gradients,
                                                   const RunOptions& options = {}) {
    const Gradient& gradient = *operators_.Find(op_)->gradient;
    std::vector<TestTensor> operands, results;
    for (int i : Expand(gradient.needs_inputs, inputs)) operands.push_back(inputs[i]);
    for (int i : gradient.needs_outputs) operands.push_back(outputs[i]);
    for (const TestTensor& dy : output_gradients) operands.push_back(dy);
    for (int i : Expand(gradient.differentiable, inputs)) {
      results.push_back(inputs[i]);
      std::memset(results.back().bytes.data(), 0x5a, results.back().bytes.size());
    }
    if (absl::Status status = Run(op_ + "_grad", operands, results, options); !status.ok()) {
      return status;
    }
    return results;
  }

  // Runs a kernel on operands as they are.
  absl::Status Run(const std::string& op, std::vector<TestTensor>& inputs,
                   std::vector<TestTensor>& outputs, const RunOptions& options = {}) {
    KernelSpec spec{op, attributes_, {}, {}};
    std::vector<TensorView> input_views, output_views;
    for (TestTensor& input : inputs) {
      spec.inputs.push_back(input.spec);
      input_views.push_back(input.view());
    }
    for (TestTensor& output : outputs) {
      spec.outputs.push_back(output.spec);
      output_views.push_back(output.view());
    }
    std::string error;
    std::unique_ptr<Kernel> kernel = kernels_.Create(spec, &error);
    if (kernel == nullptr) return absl::UnimplementedError(error);
    std::vector<char> workspace(kernel->workspace_bytes() + 64);
    KernelArgs args;
    args.inputs = input_views;
    args.outputs = output_views;
    args.workspace = reinterpret_cast<void*>(
        (reinterpret_cast<uintptr_t>(workspace.data()) + 63) / 64 * 64);
    args.seed = options.seed;
    args.node_key = options.node_key;
    args.step = options.step;
    args.training = options.training;
    const KernelStatus status = kernel->Run(args);
    return status.ok() ? absl::OkStatus() : absl::InvalidArgumentError(status.error);
  }

  const OpDef& def() const { return *operators_.Find(op_); }
  const Attributes& attributes() const { return attributes_; }

  std::vector<int> Expand(const std::vector<int>& indices,
                          const std::vector<TestTensor>& inputs) const {
    std::vector<int> all;
    for (int index : indices) {
      all.push_back(index);
      if (!def().inputs[index].variadic) continue;
      for (int i = index + 1; i < static_cast<int>(inputs.size()); ++i) all.push_back(i);
    }
    return all;
  }

 private:
  std::string op_;
  Attributes attributes_;
  OpRegistry operators_;
  KernelRegistry kernels_;
};

inline std::vector<double> ValuesOf(const absl::StatusOr<std::vector<TestTensor>>& outputs,
                                    size_t index = 0) {
  EXPECT_TRUE(outputs.ok()) << outputs.status();
  return outputs.ok() ? (*outputs)[index].values() : std::vector<double>();
}

inline void ExpectNear(const std::vector<double>& got, const std::vector<double>& want,
                       double tolerance, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], want[i], tolerance * (1 + std::abs(want[i]))) << what << ", element " << i;
  }
}

// The gradient of sum(w * y), w random, against central differences of the f32 forward kernel.
inline void CheckGradient(const std::string& op, const Attributes& attributes,
                          std::vector<TestTensor> inputs, double tolerance = 4e-3,
                          const RunOptions& options = {}) {
  TestOp node(op, attributes);
  absl::StatusOr<std::vector<TestTensor>> outputs = node.Forward(inputs, options);
  ASSERT_TRUE(outputs.ok()) << op << ": " << outputs.status();
  std::vector<TestTensor> weights;
  for (const TestTensor& output : *outputs) {
    weights.push_back(RandomTensor(DType::kF32, output.spec.dims, 99 + weights.size(), 0.5, 1.5));
  }
  absl::StatusOr<std::vector<TestTensor>> gradients =
      node.Backward(inputs, *outputs, weights, options);
  ASSERT_TRUE(gradients.ok()) << op << ": " << gradients.status();
  const auto loss = [&] {
    absl::StatusOr<std::vector<TestTensor>> y = node.Forward(inputs, options);
    EXPECT_TRUE(y.ok()) << y.status();
    double sum = 0;
    for (size_t k = 0; k < y->size(); ++k) {
      for (int64_t i = 0; i < (*y)[k].spec.num_elements(); ++i) {
        sum += (*y)[k].at(i) * weights[k].at(i);
      }
    }
    return sum;
  };
  const std::vector<int> differentiable = node.Expand(node.def().gradient->differentiable, inputs);
  for (size_t g = 0; g < differentiable.size(); ++g) {
    TestTensor& input = inputs[differentiable[g]];
    if (!IsFloat(input.spec.dtype)) continue;
    for (int64_t i = 0; i < input.spec.num_elements(); ++i) {
      const double x = input.at(i), step = 1e-2;
      input.set(i, x + step);
      const double above = loss(), high = input.at(i);
      input.set(i, x - step);
      const double below = loss(), low = input.at(i);
      input.set(i, x);
      const double want = (above - below) / (high - low);
      ASSERT_NEAR((*gradients)[g].at(i), want, tolerance * (1 + std::abs(want)))
          << op << ": gradient of input " << differentiable[g] << ", element " << i;
    }
  }
}

}  // namespace espalier::testing
