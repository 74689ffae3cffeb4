// Runs single operators on the CPU kernels for conformance tests in other languages.
//
// Reads one JSON request per line from standard input and answers with one JSON line each:
//   {"op": "linear", "attributes": {...}, "inputs": [null | tensor, ...], "training": true,
//    "output_gradients": [null | tensor, ...]}            (the last is optional)
//   {"outputs": [tensor, ...], "inputs_after": [tensor, ...], "input_gradients": {"0": tensor,
//   ...}}
//   {"error": "..."}
// {"list": true} is answered with the names of all operators.
// {"onnx": "model.onnx", "batch": 2, "feeds": {"x": tensor}} runs an ONNX file forward, node by
// node, and is answered with {"results": {"y": tensor}}. A tensor is {"dtype": "f32", "dims": [2,
// 3], "data": [numbers]}; bf16 and f16 travel as numbers too.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ops/cpu/convert.h"
#include "ops/cpu/register_all.h"
#include "ops/graph/graph.h"
#include "ops/kernel/kernel.h"
#include "ops/onnx/import.h"
#include "ops/operators/register_all.h"
#include "ops/schema/registry.h"

namespace espalier {
namespace {

using nlohmann::json;

struct Tensor {
  TensorType type;
  std::vector<char> bytes;
  bool present = false;

  TensorView view() { return {present ? bytes.data() : nullptr, TensorSpec::Whole(type)}; }
};

Tensor Make(const TensorType& type) {
  // One byte at least: null data means an absent operand.
  return {type, std::vector<char>(std::max<int64_t>(1, type.bytes())), true};
}

void Put(double value, int64_t i, Tensor* t) {
  char* at = t->bytes.data() + i * SizeOf(t->type.dtype);
  const auto put = [&](auto typed) { std::memcpy(at, &typed, sizeof typed); };
  switch (t->type.dtype) {
    case DType::kF32:
      return put(static_cast<float>(value));
    case DType::kI32:
      return put(static_cast<int32_t>(value));
    case DType::kI64:
      return put(static_cast<int64_t>(value));
    case DType::kBool:
      return put(static_cast<uint8_t>(value != 0));
    case DType::kI8:
      return put(static_cast<int8_t>(value));
    case DType::kU8:
      return put(static_cast<uint8_t>(value));
    case DType::kBF16:
      return put(F32ToBF16(static_cast<float>(value)));
    case DType::kF16:
      return put(F32ToF16(static_cast<float>(value)));
    case DType::kInvalid:
      break;
  }
}

double Get(const Tensor& t, int64_t i) {
  const char* at = t.bytes.data() + i * SizeOf(t.type.dtype);
  const auto get = [&](auto typed) {
    std::memcpy(&typed, at, sizeof typed);
    return typed;
  };
  switch (t.type.dtype) {
    case DType::kF32:
      return get(float{});
    case DType::kI32:
      return get(int32_t{});
    case DType::kI64:
      return static_cast<double>(get(int64_t{}));
    case DType::kI8:
      return get(int8_t{});
    case DType::kBool:
    case DType::kU8:
      return get(uint8_t{});
    case DType::kBF16:
      return BF16ToF32(get(uint16_t{}));
    case DType::kF16:
      return F16ToF32(get(uint16_t{}));
    case DType::kInvalid:
      break;
  }
  return 0;
}

Tensor FromJson(const json& value) {
  if (value.is_null()) return {};
  Tensor t = Make({DTypeFromName(value.at("dtype").get<std::string>()),
                   value.at("dims").get<std::vector<int64_t>>()});
  const json& data = value.at("data");
  for (int64_t i = 0; i < t.type.num_elements(); ++i) Put(data.at(i).get<double>(), i, &t);
  return t;
}

json ToJson(const Tensor& t) {
  if (!t.present) return nullptr;
  json data = json::array();
  for (int64_t i = 0; i < t.type.num_elements(); ++i) {
    const double value = Get(t, i);
    // JSON has no NaN and no infinities.
    data.push_back(std::isfinite(value) ? json(value) : json(std::to_string(value)));
  }
  return {{"dtype", Name(t.type.dtype)}, {"dims", t.type.dims}, {"data", std::move(data)}};
}

Attributes AttributesFromJson(const json& value) {
  Attributes attributes;
  for (const auto& [name, v] : value.items()) {
    if (v.is_boolean()) {
      attributes.Set(name, v.get<bool>());
    } else if (v.is_number_integer()) {
      attributes.Set(name, v.get<int64_t>());
    } else if (v.is_number()) {
      attributes.Set(name, v.get<double>());
    } else if (v.is_string()) {
      attributes.Set(name, v.get<std::string>());
    } else {
      attributes.Set(name, v.get<std::vector<int64_t>>());
    }
  }
  return attributes;
}

std::string RunKernel(const KernelRegistry& kernels, const std::string& op,
                      const Attributes& attributes, std::vector<Tensor*> inputs,
                      std::vector<Tensor*> outputs, const json& request) {
  KernelSpec spec{op, attributes, {}, {}, request.value("row_stable", false)};
  std::vector<TensorView> in, out;
  for (Tensor* t : inputs) in.push_back(t->view());
  for (Tensor* t : outputs) out.push_back(t->view());
  for (const TensorView& v : in) spec.inputs.push_back(v.spec);
  for (const TensorView& v : out) spec.outputs.push_back(v.spec);
  std::string error;
  std::unique_ptr<Kernel> kernel = kernels.Create(spec, &error);
  if (kernel == nullptr) return error;
  std::vector<char> workspace(kernel->workspace_bytes() + 64);
  KernelArgs args;
  args.inputs = in;
  args.outputs = out;
  args.workspace =
      reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(workspace.data()) + 63) / 64 * 64);
  args.seed = request.value("seed", 0);
  args.node_key = request.value("node_key", 0);
  args.step = request.value("step", 0);
  args.training = request.value("training", true);
  return kernel->Run(args).error;
}

json RunOnnx(const OpRegistry& registry, const KernelRegistry& kernels, const json& request) {
  std::ifstream file(request.at("onnx").get<std::string>(), std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  absl::StatusOr<Graph> graph = ImportOnnx(registry, bytes);
  if (!graph.ok()) return {{"error", std::string(graph.status().message())}};
  absl::Status bound = BindAndInfer(registry, request.value("batch", 1), &*graph);
  if (!bound.ok()) return {{"error", std::string(bound.message())}};
  std::vector<Tensor> values;
  for (const Value& value : graph->values()) {
    Tensor t = Make(value.type);
    if (value.kind == ValueKind::kInput) t = FromJson(request.at("feeds").at(value.name));
    std::copy(value.constant.begin(), value.constant.end(), t.bytes.begin());
    values.push_back(std::move(t));
  }
  for (const Node& node : graph->nodes()) {
    Tensor absent;
    std::vector<Tensor*> in, out;
    for (ValueId v : node.inputs) in.push_back(v == kNoValue ? &absent : &values[v]);
    for (ValueId v : node.outputs) out.push_back(&values[v]);
    std::string error = RunKernel(kernels, node.op, node.attributes, in, out, request);
    if (!error.empty()) return {{"error", node.name + ": " + error}};
  }
  json results = json::object();
  for (const auto& [name, value] : graph->outputs) results[name] = ToJson(values[value]);
  return {{"results", results}};
}

json Answer(const OpRegistry& registry, const KernelRegistry& kernels, const json& request) {
  if (request.value("list", false)) {
    json names = json::array();
    for (const OpDef* def : registry.All()) names.push_back(def->name);
    return names;
  }
  if (request.contains("onnx")) return RunOnnx(registry, kernels, request);
  const std::string op = request.at("op");
  const OpDef* def = registry.Find(op);
  if (def == nullptr) return {{"error", "unknown operator " + op}};
  std::vector<Tensor> inputs, outputs;
  NodeTypes types;
  types.attributes = AttributesFromJson(request.value("attributes", json::object()));
  for (const json& value : request.at("inputs")) {
    inputs.push_back(FromJson(value));
    types.inputs.push_back(inputs.back().type);
  }
  if (absl::Status status = InferNode(*def, &types); !status.ok()) {
    return {{"error", std::string(status.message())}};
  }
  std::vector<Tensor*> in, out;
  for (Tensor& t : inputs) in.push_back(&t);
  for (const TensorType& type : types.outputs) outputs.push_back(Make(type));
  for (Tensor& t : outputs) out.push_back(&t);
  std::string error = RunKernel(kernels, op, types.attributes, in, out, request);
  if (!error.empty()) return {{"error", error}};
  json answer = {{"outputs", json::array()}, {"inputs_after", json::array()}};
  for (const Tensor& t : outputs) answer["outputs"].push_back(ToJson(t));
  for (const Tensor& t : inputs) answer["inputs_after"].push_back(ToJson(t));
  if (!request.contains("output_gradients")) return answer;
  if (!def->gradient.has_value()) return {{"error", op + " has no gradient"}};

  const auto expand = [&](int index) {
    std::vector<int> all{index};
    if (index < static_cast<int>(def->inputs.size()) && def->inputs[index].variadic) {
      for (int i = index + 1; i < static_cast<int>(inputs.size()); ++i) all.push_back(i);
    }
    return all;
  };
  Tensor absent;
  std::vector<Tensor> output_gradients, input_gradients;
  for (const json& value : request.at("output_gradients")) {
    output_gradients.push_back(FromJson(value));
  }
  std::vector<Tensor*> grad_in, grad_out;
  std::vector<int> wanted;
  for (int index : def->gradient->needs_inputs) {
    for (int i : expand(index)) {
      grad_in.push_back(i < static_cast<int>(inputs.size()) ? &inputs[i] : &absent);
    }
  }
  for (int k : def->gradient->needs_outputs) grad_in.push_back(&outputs[k]);
  for (Tensor& t : output_gradients) grad_in.push_back(&t);
  for (int index : def->gradient->differentiable) {
    for (int i : expand(index)) wanted.push_back(i);
  }
  for (int i : wanted) {
    const bool present = i < static_cast<int>(inputs.size()) && inputs[i].present;
    input_gradients.push_back(present ? Make(inputs[i].type) : Tensor{});
  }
  for (Tensor& t : input_gradients) grad_out.push_back(&t);
  error = RunKernel(kernels, op + "_grad", types.attributes, grad_in, grad_out, request);
  if (!error.empty()) return {{"error", error}};
  answer["input_gradients"] = json::object();
  for (size_t k = 0; k < wanted.size(); ++k) {
    if (input_gradients[k].present) {
      answer["input_gradients"][std::to_string(wanted[k])] = ToJson(input_gradients[k]);
    }
  }
  return answer;
}

int Main() {
  OpRegistry registry;
  RegisterAllOperators(registry);
  KernelRegistry kernels;
  RegisterCpuKernels(kernels);
  std::string line;
  while (std::getline(std::cin, line)) {
    json answer;
    try {
      answer = Answer(registry, kernels, json::parse(line));
    } catch (const std::exception& e) {
      answer = {{"error", std::string("bad request: ") + e.what()}};
    }
    std::cout << answer.dump(-1, ' ', false, json::error_handler_t::replace) << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace espalier

int main() { return espalier::Main(); }
