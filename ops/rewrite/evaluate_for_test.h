// For tests: runs a graph on the CPU, node by node, and compares two graphs with their gradients.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "ops/cpu/register_all.h"
#include "ops/graph/autodiff.h"
#include "ops/graph/graph.h"
#include "ops/kernel/kernel.h"
#include "ops/operators/register_all.h"

namespace espalier {

inline const OpRegistry& Operators() {
  static const auto* const kRegistry = [] {
    auto* made = new OpRegistry;
    RegisterAllOperators(*made);
    return made;
  }();
  return *kRegistry;
}

inline const KernelRegistry& Kernels() {
  static const auto* const kRegistry = [] {
    auto* made = new KernelRegistry;
    RegisterCpuKernels(*made);
    return made;
  }();
  return *kRegistry;
}

// What a value is fed that nothing computes: the same in every graph that has one of its name.
inline std::string FedBytes(const Value& value, int seed) {
  if (!value.constant.empty()) return value.constant;
  std::mt19937 random(static_cast<unsigned>(std::hash<std::string>()(value.name)) + seed);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::string bytes(value.type.bytes(), '\0');
  for (int64_t i = 0; i < value.type.num_elements(); ++i) {
    const float number = uniform(random);
    if (value.type.dtype == DType::kF32) std::memcpy(&bytes[4 * i], &number, sizeof(number));
    if (value.type.dtype == DType::kBool) bytes[i] = number > 0 ? 1 : 0;
    if (value.type.dtype == DType::kI64) bytes[8 * i] = number > 0 ? 1 : 0;
  }
  return bytes;
}

// The bytes of every value of a bound graph, by id.
inline std::vector<std::string> Evaluate(const Graph& graph, int seed) {
  std::vector<std::string> bytes;
  for (const Value& value : graph.values()) {
    bytes.push_back(value.kind == ValueKind::kComputed ? std::string(value.type.bytes(), 0x7f)
                                                       : FedBytes(value, seed));
  }
  for (const Node& node : graph.nodes()) {
    KernelSpec spec{node.op, node.attributes, {}, {}, false};
    std::vector<TensorView> in, out;
    const auto view = [&](ValueId v) {
      return v == kNoValue ? TensorView{}
                           : TensorView{bytes[v].data(), TensorSpec::Whole(graph.value(v).type)};
    };
    for (ValueId v : node.inputs) in.push_back(view(v));
    for (ValueId v : node.outputs) out.push_back(view(v));
    for (const TensorView& v : in) spec.inputs.push_back(v.spec);
    for (const TensorView& v : out) spec.outputs.push_back(v.spec);
    std::string error;
    std::unique_ptr<Kernel> kernel = Kernels().Create(spec, &error);
    EXPECT_NE(kernel, nullptr) << node.name << ": " << error;
    if (kernel == nullptr) return bytes;
    const size_t size = (kernel->workspace_bytes() + 63) / 64 * 64 + 64;
    std::unique_ptr<void, void (*)(void*)> workspace(std::aligned_alloc(64, size), std::free);
    KernelArgs args;
    args.inputs = in;
    args.outputs = out;
    args.workspace = workspace.get();
    const KernelStatus status = kernel->Run(args);
    EXPECT_TRUE(status.ok()) << node.name << ": " << status.error;
  }
  return bytes;
}

// Output "loss": the sum of all outputs, each element with a weight of its own.
inline void AddLoss(Graph* graph) {
  ValueId loss = kNoValue;
  const auto outputs = graph->outputs;
  for (const auto& [name, value] : outputs) {
    const auto add = [&](const std::string& op, std::vector<ValueId> inputs) {
      const std::string node = "loss." + op + "." + name;
      const ValueId y = graph->AddValue({.name = node});
      graph->AddNode({.name = node, .op = op, .inputs = std::move(inputs), .outputs = {y}});
      return y;
    };
    const ValueId weight = graph->AddValue({.name = "loss.weight." + name,
                                            .type = graph->value(value).type,
                                            .kind = ValueKind::kInput});
    const ValueId sum = add("reduce_sum", {add("multiply", {value, weight})});
    loss = loss == kNoValue ? sum : add("add", {loss, sum});
  }
  graph->outputs.emplace_back("loss", loss);
  ASSERT_TRUE(BindAndInfer(Operators(), 1, graph).ok());
}

// Outputs and gradients of trainable parameters, by name.
inline std::map<std::string, std::vector<float>> OutputsAndGradients(Graph graph, int seed) {
  AddLoss(&graph);
  absl::StatusOr<TrainingGraph> training = Differentiate(Operators(), graph);
  EXPECT_TRUE(training.ok()) << training.status();
  if (!training.ok()) return {};
  const std::vector<std::string> bytes = Evaluate(training->graph, seed);
  std::map<std::string, std::vector<float>> results;
  const auto keep = [&](const std::string& name, ValueId v) {
    std::vector<float>& numbers = results[name];
    numbers.resize(bytes[v].size() / sizeof(float));
    std::memcpy(numbers.data(), bytes[v].data(), bytes[v].size());
  };
  for (const auto& [name, value] : graph.outputs) keep(name, value);
  for (const auto& [parameter, gradient] : training->gradients) {
    keep("gradient of " + graph.value(parameter).name, gradient);
  }
  return results;
}

// The same outputs and gradients, to `tolerance` of the largest element of each.
inline void ExpectSame(const Graph& before, const Graph& after, int seed, double tolerance = 1e-5) {
  const auto expected = OutputsAndGradients(before, seed), found = OutputsAndGradients(after, seed);
  ASSERT_EQ(expected.size(), found.size());
  for (const auto& [name, numbers] : expected) {
    ASSERT_EQ(found.count(name), 1u) << name;
    const std::vector<float>& others = found.at(name);
    ASSERT_EQ(numbers.size(), others.size()) << name;
    // The terms of the loss may cancel out.
    double largest = name == "loss" ? 1 : 0, error = 0;
    for (size_t i = 0; i < numbers.size(); ++i) {
      largest = std::max(largest, std::abs(static_cast<double>(numbers[i])));
      error = std::max(error, std::abs(static_cast<double>(numbers[i]) - others[i]));
      ASSERT_TRUE(std::isfinite(numbers[i]) && std::isfinite(others[i])) << name << " " << i;
    }
    EXPECT_LE(error, tolerance * largest) << name << ", seed " << seed;
  }
}

}  // namespace espalier
