// Test utility: runs one operator on the CPU as the executor does (infers shapes, makes the kernel,
// gives it a workspace of exactly the requested size), and checks gradients against central
// differences.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "ops/cpu/dtype/element.h"
#include "ops/cpu/register_all.h"
#include "ops/operators/register_all.h"
#include "ops/schema/registry.h"

namespace espalier {

struct TestTensor {
  TensorType type;
  std::vector<char> bytes;

  template <typename T>
  T* as() {
    return reinterpret_cast<T*>(bytes.data());
  }
  template <typename T>
  const T* as() const {
    return reinterpret_cast<const T*>(bytes.data());
  }
  float at(int64_t i) const { return as<float>()[i]; }
  // Returns the elements as numbers, whatever their type.
  double value(int64_t i) const {
    double number = 0;
    WithElement(type.dtype, [&](auto element) {
      using Element = decltype(element);
      number = static_cast<double>(Element::Value(as<typename Element::Storage>()[i]));
    });
    return number;
  }
  void set(int64_t i, double number) {
    WithElement(type.dtype, [&](auto element) {
      using Element = decltype(element);
      as<typename Element::Storage>()[i] = Element::From(number);
    });
  }
  std::vector<double> values() const {
    std::vector<double> all(size());
    for (size_t i = 0; i < all.size(); ++i) all[i] = value(static_cast<int64_t>(i));
    return all;
  }
  int64_t size() const { return type.num_elements(); }
  bool present() const { return type.dtype != DType::kInvalid; }
};

inline TestTensor Zeros(DType dtype, const Dims& dims) {
  TestTensor tensor{{dtype, dims}, {}};
  tensor.bytes.resize(tensor.type.bytes());
  return tensor;
}

template <typename T>
TestTensor Filled(DType dtype, const Dims& dims, const std::vector<T>& values) {
  TestTensor tensor = Zeros(dtype, dims);
  EXPECT_EQ(tensor.bytes.size(), values.size() * sizeof(T));
  std::copy_n(reinterpret_cast<const char*>(values.data()), tensor.bytes.size(),
              tensor.bytes.begin());
  return tensor;
}
inline TestTensor F32(const Dims& dims, const std::vector<float>& values) {
  return Filled(DType::kF32, dims, values);
}
inline TestTensor I32(const Dims& dims, const std::vector<int32_t>& values) {
  return Filled(DType::kI32, dims, values);
}
// Numbers in any element type.
inline TestTensor Tensor(DType dtype, const Dims& dims, const std::vector<double>& values) {
  TestTensor tensor = Zeros(dtype, dims);
  EXPECT_EQ(tensor.size(), static_cast<int64_t>(values.size()));
  for (int64_t i = 0; i < tensor.size(); ++i) tensor.set(i, values[i]);
  return tensor;
}
// Uniform in [low, high).
inline TestTensor RandomIn(DType dtype, const Dims& dims, int seed, double low, double high) {
  TestTensor tensor = Zeros(dtype, dims);
  std::mt19937 generator(seed);
  std::uniform_real_distribution<double> uniform(low, high);
  for (int64_t i = 0; i < tensor.size(); ++i) tensor.set(i, uniform(generator));
  return tensor;
}
// Uniform in [-1, 1).
inline TestTensor Random(const Dims& dims, int seed) {
  TestTensor tensor = Zeros(DType::kF32, dims);
  std::mt19937 generator(seed);
  std::uniform_real_distribution<float> uniform(-1, 1);
  for (int64_t i = 0; i < tensor.size(); ++i) tensor.as<float>()[i] = uniform(generator);
  return tensor;
}

struct RunOptions {
  bool batch_invariant = false;
  bool training = true;
  // Offset and global dimensions of input i, by index; missing or empty: the whole tensor.
  std::vector<TensorSpec> specs = {};
  std::vector<TensorSpec> output_specs = {};  // the same for outputs
  uint64_t seed = 0;
  uint64_t node_key = 0;
  int64_t step = 0;
};

class OpRunner {
 public:
  OpRunner() {
    RegisterAllOperators(definitions_);
    RegisterCpuKernels(kernels_);
  }

  const OpDef& definition(const std::string& op) const { return *definitions_.Find(op); }
  const KernelRegistry& kernels() const { return kernels_; }

  absl::Status Infer(const std::string& op, const std::vector<TestTensor>& inputs,
                     NodeTypes* types) const {
    for (const TestTensor& input : inputs) types->inputs.push_back(input.type);
    return InferNode(definition(op), types);
  }

  // Returns the error of shape inference; empty if it succeeds.
  std::string InferError(const std::string& op, Attributes attributes,
                         const std::vector<TestTensor>& inputs) const {
    NodeTypes types{std::move(attributes), {}, {}};
    return std::string(Infer(op, inputs, &types).message());
  }

  // Runs the forward kernel; inputs may be written (caches, running values).
  KernelStatus TryRun(const std::string& op, Attributes attributes, std::vector<TestTensor>* inputs,
                      std::vector<TestTensor>* outputs, const RunOptions& options = {}) const {
    NodeTypes types{std::move(attributes), {}, {}};
    if (absl::Status status = Infer(op, *inputs, &types); !status.ok()) {
      return KernelStatus::Error(std::string(status.message()));
    }
    outputs->clear();
    for (const TensorType& type : types.outputs) outputs->push_back(Zeros(type.dtype, type.dims));
    return RunKernel(op, types.attributes, inputs, outputs, options);
  }

  std::vector<TestTensor> Run(const std::string& op, Attributes attributes,
                              std::vector<TestTensor> inputs,
                              const RunOptions& options = {}) const {
    std::vector<TestTensor> outputs;
    const KernelStatus status = TryRun(op, std::move(attributes), &inputs, &outputs, options);
    EXPECT_TRUE(status.ok()) << op << ": " << status.error;
    return outputs;
  }

  // Returns the error of TryRun; empty if it succeeds.
  std::string RunError(const std::string& op, const Attributes& attributes,
                       std::vector<TestTensor> inputs, const RunOptions& options = {}) const {
    std::vector<TestTensor> outputs;
    return TryRun(op, attributes, &inputs, &outputs, options).error;
  }

  // Returns the gradients of the differentiable inputs in the definition's order; absent for absent
  // inputs.
  std::vector<TestTensor> RunGradient(const std::string& op, const Attributes& attributes,
                                      const std::vector<TestTensor>& inputs,
                                      const std::vector<TestTensor>& outputs,
                                      const std::vector<TestTensor>& output_gradients,
                                      const RunOptions& options = {}) const {
    NodeTypes types{attributes, {}, {}};
    EXPECT_TRUE(Infer(op, inputs, &types).ok());
    const Gradient& gradient = *definition(op).gradient;
    std::vector<TestTensor> operands, results;
    for (int i : Expand(op, gradient.needs_inputs, inputs.size())) {
      operands.push_back(i < static_cast<int>(inputs.size()) ? inputs[i] : TestTensor{});
    }
    for (int i : gradient.needs_outputs) operands.push_back(outputs[i]);
    for (const TestTensor& dy : output_gradients) operands.push_back(dy);
    for (int i : Expand(op, gradient.differentiable, inputs.size())) {
      const bool present = i < static_cast<int>(inputs.size()) && inputs[i].present();
      results.push_back(present ? Zeros(inputs[i].type.dtype, inputs[i].type.dims) : TestTensor{});
      for (char& byte : results.back().bytes)
        byte = 0x7f;  // reveals elements that the kernel does not write
    }
    const KernelStatus status =
        RunKernel(op + "_grad", types.attributes, &operands, &results, options);
    EXPECT_TRUE(status.ok()) << op << "_grad: " << status.error;
    return results;
  }

  // Compares with central differences of sum(w * y) for fixed random w, at up to 24 elements of
  // every differentiable input. Errors are relative to the largest gradient of the input.
  void CheckGradient(const std::string& op, const Attributes& attributes,
                     std::vector<TestTensor> inputs, double tolerance = 2e-3,
                     float h = 1e-2f) const {
    SCOPED_TRACE(op);
    std::vector<TestTensor> outputs = Run(op, attributes, inputs), weights;
    for (size_t i = 0; i < outputs.size(); ++i) {
      weights.push_back(Random(outputs[i].type.dims, 1000 + static_cast<int>(i)));
    }
    const auto loss = [&] {
      double sum = 0;
      const std::vector<TestTensor> y = Run(op, attributes, inputs);
      for (size_t o = 0; o < y.size(); ++o) {
        for (int64_t i = 0; i < y[o].size(); ++i) {
          sum += static_cast<double>(weights[o].at(i)) * y[o].at(i);
        }
      }
      return sum;
    };
    const std::vector<TestTensor> gradients = RunGradient(op, attributes, inputs, outputs, weights);
    const std::vector<int> differentiable =
        Expand(op, definition(op).gradient->differentiable, inputs.size());
    for (size_t g = 0; g < differentiable.size(); ++g) {
      const size_t index = differentiable[g];
      if (index >= inputs.size() || !inputs[index].present()) continue;
      double largest = 1e-3;
      for (int64_t i = 0; i < gradients[g].size(); ++i) {
        largest = std::max(largest, std::abs(static_cast<double>(gradients[g].at(i))));
      }
      const int64_t step = std::max<int64_t>(1, gradients[g].size() / 24);
      for (int64_t i = 0; i < gradients[g].size(); i += step) {
        float& x = inputs[index].as<float>()[i];
        const float before = x;
        x = before + h;
        const double up = loss(), width_up = x;
        x = before - h;
        const double down = loss(), width = width_up - x;
        x = before;
        EXPECT_NEAR(gradients[g].at(i), (up - down) / width, tolerance * largest)
            << "element " << i << " of the gradient of input " << index;
      }
    }
  }

  // Runs a kernel, "x" or "x_grad", on operands as they are; attributes must be complete.
  KernelStatus RunKernel(const std::string& op, const Attributes& attributes,
                         std::vector<TestTensor>* inputs, std::vector<TestTensor>* outputs,
                         const RunOptions& options) const {
    const std::vector<TensorView> in = Views(inputs, options.specs),
                                  out = Views(outputs, options.output_specs);
    KernelSpec spec{op, attributes, {}, {}, options.batch_invariant};
    for (const TensorView& view : in) spec.inputs.push_back(view.spec);
    for (const TensorView& view : out) spec.outputs.push_back(view.spec);
    std::string error;
    std::unique_ptr<Kernel> kernel = kernels_.Create(spec, &error);
    if (kernel == nullptr) return KernelStatus::Error(error);
    const size_t bytes = kernel->workspace_bytes();
    std::unique_ptr<void, Free> workspace(std::aligned_alloc(64, (bytes + 63) / 64 * 64));
    KernelArgs args;
    args.inputs = in;
    args.outputs = out;
    args.workspace = workspace.get();
    args.training = options.training;
    args.seed = options.seed;
    args.node_key = options.node_key;
    args.step = options.step;
    return kernel->Run(args);
  }

 private:
  // Expands the positions of a Gradient: a variadic input stands for all positions from its index
  // on.
  std::vector<int> Expand(const std::string& op, const std::vector<int>& indices,
                          size_t inputs) const {
    const std::vector<Arity>& arity = definition(op).inputs;
    std::vector<int> all;
    for (int index : indices) {
      all.push_back(index);
      if (index >= static_cast<int>(arity.size()) || !arity[index].variadic) continue;
      for (int i = index + 1; i < static_cast<int>(inputs); ++i) all.push_back(i);
    }
    return all;
  }

  struct Free {
    void operator()(void* p) const { std::free(p); }
  };

  static std::vector<TensorView> Views(std::vector<TestTensor>* tensors,
                                       const std::vector<TensorSpec>& specs) {
    std::vector<TensorView> views;
    for (size_t i = 0; i < tensors->size(); ++i) {
      TestTensor& tensor = (*tensors)[i];
      TensorView view;
      if (tensor.present()) {
        // A tensor without elements still has an address, as in the executor's arena.
        static char empty;
        view = {tensor.bytes.empty() ? &empty : tensor.bytes.data(),
                TensorSpec::Whole(tensor.type)};
        if (i < specs.size() && !specs[i].global.empty()) {
          view.spec.offset = specs[i].offset;
          view.spec.global = specs[i].global;
        }
      }
      views.push_back(view);
    }
    return views;
  }

  OpRegistry definitions_;
  KernelRegistry kernels_;
};

// Within `tolerance`, relative to 1 + |expected|.
inline void ExpectNear(const std::vector<double>& actual, const std::vector<double>& expected,
                       double tolerance, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_NEAR(actual[i], expected[i], tolerance * (1 + std::abs(expected[i])))
        << what << ", element " << i;
  }
}

inline void ExpectClose(const TestTensor& actual, const std::vector<double>& expected,
                        double tolerance) {
  ASSERT_EQ(actual.size(), static_cast<int64_t>(expected.size()));
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_NEAR(actual.at(static_cast<int64_t>(i)), expected[i], tolerance) << "element " << i;
  }
}

}  // namespace espalier
