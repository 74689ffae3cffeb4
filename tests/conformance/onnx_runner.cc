// Runs ONNX files forward on the CPU kernels, node by node, for conformance tests in other
// languages. Reads one JSON request per line from standard input,
//   {"onnx": "model.onnx", "batch": 2, "feeds": {"x": tensor}}
// and answers with one line each: {"results": {"y": tensor}} or {"error": "..."}.
//   {"onnx": "model.onnx", "export": "other.onnx", "weights": "other.bin"}
// imports the file and exports it again; weights go into "weights" if given.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "ops/graph/graph.h"
#include "ops/onnx/cpu_evaluator.h"
#include "ops/onnx/export.h"
#include "ops/onnx/import.h"
#include "ops/operators/register_all.h"
#include "tests/conformance/json.h"

namespace espalier::conformance {
namespace {

using gpu_check::Backend;

json Export(const OpRegistry& registry, const Graph& graph, const json& request) {
  ExportOptions options;
  std::string weights;
  const std::filesystem::path file = request.value("weights", "");
  if (!file.empty()) {
    options.weight = [&](const Value& parameter) -> absl::StatusOr<OnnxWeight> {
      const int64_t offset = static_cast<int64_t>(weights.size());
      weights += parameter.constant;
      return OnnxWeight{"", file.filename(), offset};
    };
  }
  absl::StatusOr<std::string> bytes = ExportOnnx(registry, graph, options);
  if (!bytes.ok()) return {{"error", std::string(bytes.status().message())}};
  std::ofstream(request.at("export").get<std::string>(), std::ios::binary) << *bytes;
  if (!file.empty()) std::ofstream(file, std::ios::binary) << weights;
  return {{"results", json::object()}};
}

json Answer(const OpRegistry& registry, Backend* backend, const json& request) {
  std::ifstream file(request.at("onnx").get<std::string>(), std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  ImportOptions options;
  options.evaluator = CpuEvaluator();
  options.folder = std::filesystem::path(request.at("onnx").get<std::string>()).parent_path();
  absl::StatusOr<Graph> graph = ImportOnnx(registry, bytes, options);
  if (!graph.ok()) return {{"error", std::string(graph.status().message())}};
  if (request.contains("export")) return Export(registry, *graph, request);
  absl::Status bound = BindAndInfer(registry, request.value("batch", 1), &*graph);
  if (!bound.ok()) return {{"error", std::string(bound.message())}};
  std::vector<HostTensor> values;
  for (const Value& value : graph->values()) {
    HostTensor t = HostTensor::Zeros(TensorSpec::Whole(value.type));
    if (value.kind == ValueKind::kInput) t = TensorFromJson(request.at("feeds").at(value.name));
    std::copy(value.constant.begin(), value.constant.end(), t.bytes.begin());
    values.push_back(std::move(t));
  }
  for (const Node& node : graph->nodes()) {
    KernelSpec spec{node.op, node.attributes, {}, {}, false};
    std::vector<HostTensor> in, out;
    for (ValueId v : node.inputs) in.push_back(v == kNoValue ? HostTensor() : values[v]);
    for (ValueId v : node.outputs) out.push_back(values[v]);
    for (const HostTensor& t : in) spec.inputs.push_back(t.spec);
    for (const HostTensor& t : out) spec.outputs.push_back(t.spec);
    const std::string error = backend->Run(spec, OptionsOf(request), &in, &out);
    if (!error.empty()) return {{"error", node.name + ": " + error}};
    for (size_t k = 0; k < out.size(); ++k) values[node.outputs[k]] = std::move(out[k]);
  }
  json results = json::object();
  for (const auto& [name, value] : graph->outputs) results[name] = ToJson(values[value]);
  return {{"results", results}};
}

}  // namespace
}  // namespace espalier::conformance

int main() {
  using namespace espalier;
  OpRegistry registry;
  RegisterAllOperators(registry);
  const std::unique_ptr<gpu_check::Backend> backend = gpu_check::NewCpuBackend();
  conformance::Serve([&](const conformance::json& request) {
    return conformance::Answer(registry, backend.get(), request);
  });
}
