// Runs single operators for conformance tests in other languages:
//
//   op_runner [--device=cuda --plugin=FILE]          (without: on the CPU kernels)
//
// Reads one JSON request per line from standard input and answers with one JSON line each:
//   {"op": "linear", "attributes": {...}, "inputs": [null | tensor, ...], "training": true,
//    "output_gradients": [null | tensor, ...],            (optional)
//    "split": {"sample": 2, "out": 3}}                    (optional: degrees of the axes to split)
//   {"outputs": [tensor, ...], "inputs_after": [tensor, ...], "input_gradients": {"0": tensor,
//   ...}, "summed": whether any result is a sum over shards}
//   {"error": "..."}
// With "axes": true it runs nothing and answers {"axes": [{"name": "sample", "kind": "sample",
// "size": 4}, ...], "inputs": the axis that each dimension follows, "outputs": [{"dtype": "f32",
// "dims": [4, 3]}, ...]}.
// {"list": true} is answered with the names of all operators. See json.h for tensors.
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ops/operators/register_all.h"
#include "planner/pcg/node_config.h"
#include "tests/conformance/json.h"
#include "tests/conformance/sharded_run.h"

namespace espalier::conformance {
namespace {

using gpu_check::Backend;

json AxesOf(const OpDef& def, const NodeTypes& types) {
  const absl::StatusOr<SplitRule> rule = CompleteSplitRule(def, types);
  if (!rule.ok()) return {{"error", std::string(rule.status().message())}};
  json axes = json::array();
  for (const Axis& axis : rule->axes) {
    axes.push_back({{"name", axis.name}, {"kind", KindName(axis.kind)}, {"size", axis.size}});
  }
  json outputs = json::array();
  for (const TensorType& type : types.outputs) {
    outputs.push_back({{"dtype", Name(type.dtype)}, {"dims", type.dims}});
  }
  return {{"axes", axes}, {"inputs", rule->inputs}, {"outputs", outputs}};
}

json Answer(const OpRegistry& registry, Backend* backend, const json& request) {
  if (request.value("list", false)) {
    json names = json::array();
    for (const OpDef* def : registry.All()) names.push_back(def->name);
    return names;
  }
  const std::string op = request.at("op");
  OperatorRun run;
  run.def = registry.Find(op);
  if (run.def == nullptr) return {{"error", "unknown operator " + op}};
  run.types.attributes = AttributesFromJson(request.value("attributes", json::object()));
  for (const json& value : request.at("inputs")) {
    run.inputs.push_back(TensorFromJson(value));
    run.types.inputs.push_back(run.inputs.back().spec.type());
  }
  if (absl::Status status = InferNode(*run.def, &run.types); !status.ok()) {
    return {{"error", std::string(status.message())}};
  }
  if (request.value("axes", false)) return AxesOf(*run.def, run.types);
  run.options = OptionsOf(request);
  run.batch_invariant = request.value("batch_invariant", false);
  run.degrees = request.value("split", std::map<std::string, int>());
  if (request.contains("output_gradients")) {
    run.output_gradients.emplace();
    for (const json& value : request.at("output_gradients")) {
      run.output_gradients->push_back(TensorFromJson(value));
    }
  }
  OperatorResult result;
  const std::string error = Run(backend, run, &result);
  if (!error.empty()) return {{"error", error}};
  json answer = {
      {"outputs", json::array()}, {"inputs_after", json::array()}, {"summed", result.summed}};
  for (const HostTensor& t : result.outputs) answer["outputs"].push_back(ToJson(t));
  for (const HostTensor& t : result.inputs_after) answer["inputs_after"].push_back(ToJson(t));
  if (!run.output_gradients.has_value()) return answer;
  answer["input_gradients"] = json::object();
  for (const auto& [i, t] : result.input_gradients) {
    answer["input_gradients"][std::to_string(i)] = ToJson(t);
  }
  return answer;
}

// Returns null and sets *error if the options are not supported.
std::unique_ptr<Backend> MakeBackend(int argc, char** argv, std::string* error) {
  std::string device = "cpu", plugin_path;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg.rfind("--device=", 0) == 0) {
      device = arg.substr(9);
    } else if (arg.rfind("--plugin=", 0) == 0) {
      plugin_path = arg.substr(9);
    } else {
      *error = absl::StrCat("unknown option ", arg, " (known: --device=cpu|cuda, --plugin=FILE)");
      return nullptr;
    }
  }
  if (device == "cpu") return gpu_check::NewCpuBackend();
  if (device != "cuda") {
    *error = absl::StrCat("--device=", device, ": expected cpu or cuda");
    return nullptr;
  }
  if (plugin_path.empty()) {
    *error = "--device=cuda needs --plugin=FILE, the built libespalier_cuda.so";
    return nullptr;
  }
  CudaPlugin* plugin = gpu_check::OpenCudaPlugin(plugin_path, error);
  if (plugin == nullptr) return nullptr;
  const std::vector<CudaDeviceInfo> devices = plugin->Devices();
  if (devices.empty()) {
    *error = "--device=cuda: there is no GPU here";
    return nullptr;
  }
  return gpu_check::NewCudaBackend(plugin, devices[0].ordinal);
}

int Main(int argc, char** argv) {
  std::string error;
  const std::unique_ptr<Backend> backend = MakeBackend(argc, argv, &error);
  if (backend == nullptr) {
    std::fprintf(stderr, "op_runner: %s\n", error.c_str());
    return 2;
  }
  OpRegistry registry;
  RegisterAllOperators(registry);
  Serve([&](const json& request) { return Answer(registry, backend.get(), request); });
  return 0;
}

}  // namespace
}  // namespace espalier::conformance

int main(int argc, char** argv) { return espalier::conformance::Main(argc, argv); }
