// Runs the ONNX project's backend node tests: each is a folder with model.onnx and data sets.
//
//   onnx_node_tests DATA_FOLDER [name...]
//
// prints, for each test, one line of the fields (tab-separated)
//   name  passed|failed|unsupported  operator  float|other  reason
// Each test runs in a process of its own: a crash is a failure of that test. "float": the graph's
// inputs and outputs are tensors, f32 among them, and no f64 or strings.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "ops/cpu/dtype/convert.h"
#include "ops/graph/graph.h"
#include "ops/onnx/cpu_evaluator.h"
#include "ops/onnx/import.h"
#include "ops/onnx/tensor_proto.h"
#include "ops/operators/register_all.h"
#include "third_party/onnx/onnx.pb.h"

namespace espalier {
namespace {

namespace fs = std::filesystem;

// Tolerances of the ONNX project's test runner.
constexpr double kRelative = 1e-3, kAbsolute = 1e-7;
constexpr int kSeconds = 20;
// Integers and small tensors among the inputs may stand for attributes (shapes, axes, bounds).
constexpr int64_t kMaxConstant = 64;

struct Outcome {
  std::string status, reason;
};
Outcome Unsupported(absl::string_view why) { return {"unsupported", std::string(why)}; }
Outcome Failed(absl::string_view why) { return {"failed", std::string(why)}; }

std::string ReadFile(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// The data files store bf16 as u16. Expected results are truncated, not rounded as ONNX specifies.
absl::StatusOr<HostTensor> ReadTensorFile(const fs::path& path, const onnx::ValueInfoProto& value,
                                          bool result) {
  onnx::TensorProto tensor;
  if (!tensor.ParseFromString(ReadFile(path))) {
    return absl::UnimplementedError("data of a type other than a tensor");
  }
  const int declared = value.type().tensor_type().elem_type();
  if (tensor.data_type() == onnx::TensorProto::UINT16 && declared == onnx::TensorProto::BFLOAT16) {
    if (result) return absl::UnimplementedError("its bf16 results were cut off, not rounded");
    tensor.set_data_type(declared);
  }
  if (tensor.data_type() == onnx::TensorProto::DOUBLE) {
    return absl::UnimplementedError("data of type DOUBLE");
  }
  return onnx_import::ReadTensor(tensor, "");
}

double At(const HostTensor& t, int64_t i) {
  if (t.type.dtype == DType::kBF16 || t.type.dtype == DType::kF16) {
    uint16_t half;
    std::memcpy(&half, t.bytes.data() + 2 * i, 2);
    return t.type.dtype == DType::kF16 ? F16ToF32(half) : BF16ToF32(half);
  }
  const size_t size = SizeOf(t.type.dtype);
  return onnx_import::NumbersOf({t.type.dtype, {1}}, t.bytes.substr(i * size, size))[0];
}

// Returns an error message, empty if they agree.
std::string Compare(const HostTensor& ours, const HostTensor& theirs) {
  if (ours.type != theirs.type) {
    return absl::StrCat("is ", ToString(ours.type), ", expected ", ToString(theirs.type));
  }
  for (int64_t i = 0; i < ours.type.num_elements(); ++i) {
    const double a = At(ours, i), b = At(theirs, i);
    if ((std::isnan(a) && std::isnan(b)) || a == b) continue;
    if (!(std::abs(a - b) <= kAbsolute + kRelative * std::abs(b))) {
      return absl::StrCat("element ", i, " is ", a, ", expected ", b);
    }
  }
  return "";
}

// Runs the graph on the host, node by node.
absl::StatusOr<std::vector<HostTensor>> Run(const OpRegistry& registry, const Graph& graph,
                                            const std::map<std::string, HostTensor>& feeds) {
  const Evaluator evaluate = CpuEvaluator();
  std::vector<HostTensor> values;
  for (const Value& value : graph.values()) {
    HostTensor tensor{value.type, value.constant};
    if (value.kind == ValueKind::kInput) tensor = feeds.at(value.name);
    if (value.kind == ValueKind::kInput && tensor.type != value.type) {
      return absl::InvalidArgumentError(absl::StrCat("input '", value.name, "' is ",
                                                     ToString(tensor.type), ", the model's is ",
                                                     ToString(value.type)));
    }
    values.push_back(std::move(tensor));
  }
  for (const Node& node : graph.nodes()) {
    NodeTypes types;
    types.attributes = node.attributes;
    std::vector<const std::string*> inputs;
    for (ValueId v : node.inputs) {
      types.inputs.push_back(v == kNoValue ? TensorType{} : values[v].type);
      inputs.push_back(v == kNoValue ? nullptr : &values[v].bytes);
    }
    for (ValueId v : node.outputs) types.outputs.push_back(values[v].type);
    absl::StatusOr<std::vector<std::string>> results = evaluate(node.op, types, inputs);
    if (!results.ok()) return results.status();
    for (size_t k = 0; k < node.outputs.size(); ++k) {
      values[node.outputs[k]].bytes = std::move((*results)[k]);
    }
  }
  std::vector<HostTensor> outputs;
  for (const auto& [name, value] : graph.outputs) outputs.push_back(values[value]);
  return outputs;
}

Outcome RunSet(const OpRegistry& registry, const onnx::ModelProto& model, const std::string& bytes,
               const fs::path& folder) {
  ImportOptions options;
  options.evaluator = CpuEvaluator();
  for (const auto* list : {&model.graph().input(), &model.graph().output()}) {
    for (const onnx::ValueInfoProto& value : *list) {
      if (!value.type().has_tensor_type()) return Unsupported("sequences or optional values");
    }
  }
  std::set<std::string> initializers;
  for (const onnx::TensorProto& t : model.graph().initializer()) initializers.insert(t.name());
  std::map<std::string, HostTensor> feeds;
  int index = 0;
  for (const onnx::ValueInfoProto& input : model.graph().input()) {
    const fs::path file = folder / absl::StrCat("input_", index++, ".pb");
    if (initializers.count(input.name()) > 0) continue;
    if (!fs::exists(file)) return Unsupported(absl::StrCat("no data for input ", input.name()));
    absl::StatusOr<HostTensor> tensor = ReadTensorFile(file, input, false);
    if (!tensor.ok()) return Unsupported(tensor.status().message());
    if (tensor->type.num_elements() <= kMaxConstant) options.constants[input.name()] = *tensor;
    options.shapes[input.name()] = tensor->type.dims;
    feeds[input.name()] = *std::move(tensor);
  }
  absl::StatusOr<Graph> graph = ImportOnnx(registry, bytes, options);
  if (!graph.ok()) return Unsupported(graph.status().message());
  if (absl::Status status = BindAndInfer(registry, 1, &*graph); !status.ok()) {
    return Failed(absl::StrCat("imported, and then: ", status.message()));
  }
  absl::StatusOr<std::vector<HostTensor>> outputs = Run(registry, *graph, feeds);
  if (!outputs.ok()) {
    const bool refused = outputs.status().code() == absl::StatusCode::kUnimplemented;
    return refused ? Unsupported(outputs.status().message()) : Failed(outputs.status().message());
  }
  bool random = false;
  for (const Node& node : graph->nodes()) random = random || registry.Find(node.op)->random;
  for (size_t k = 0; k < outputs->size(); ++k) {
    absl::StatusOr<HostTensor> expected =
        ReadTensorFile(folder / absl::StrCat("output_", k, ".pb"),
                       model.graph().output(static_cast<int>(k)), true);
    if (!expected.ok()) return Unsupported(expected.status().message());
    const std::string difference = Compare((*outputs)[k], *expected);
    if (!difference.empty() && random) {
      return Unsupported("its random numbers are those of another generator");
    }
    if (!difference.empty()) return Failed(absl::StrCat("output ", k, " ", difference));
  }
  return {"passed", ""};
}

Outcome RunTest(const OpRegistry& registry, const onnx::ModelProto& model, const std::string& bytes,
                const fs::path& folder) {
  Outcome outcome = Unsupported("no data set");
  for (int set = 0;; ++set) {
    const fs::path data = folder / absl::StrCat("test_data_set_", set);
    if (!fs::exists(data)) return outcome;
    outcome = RunSet(registry, model, bytes, data);
    if (outcome.status != "passed") return outcome;
  }
}

// Runs in a child process, which writes its outcome to a pipe.
Outcome Isolated(const OpRegistry& registry, const onnx::ModelProto& model,
                 const std::string& bytes, const fs::path& folder) {
  int ends[2];
  if (pipe(ends) != 0) return Failed("pipe");
  const pid_t child = fork();
  if (child == 0) {
    alarm(kSeconds);
    const Outcome outcome = RunTest(registry, model, bytes, folder);
    const std::string text = absl::StrCat(outcome.status, "\n", outcome.reason);
    const bool written = write(ends[1], text.data(), text.size()) >= 0;
    _exit(written ? 0 : 1);
  }
  close(ends[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t n; (n = read(ends[0], buffer, sizeof buffer)) > 0;) text.append(buffer, n);
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFSIGNALED(status)) {
    return Failed(WTERMSIG(status) == SIGALRM ? "takes too long"
                                              : absl::StrCat("dies of signal ", WTERMSIG(status)));
  }
  const size_t end = text.find('\n');
  if (end == std::string::npos) return Failed("dies");
  return {text.substr(0, end), text.substr(end + 1)};
}

bool IsFloatTest(const onnx::ModelProto& model) {
  bool floats = false;
  for (const auto* list : {&model.graph().input(), &model.graph().output()}) {
    for (const onnx::ValueInfoProto& value : *list) {
      if (!value.type().has_tensor_type()) return false;
      const int type = value.type().tensor_type().elem_type();
      if (type == onnx::TensorProto::DOUBLE || type == onnx::TensorProto::STRING) return false;
      floats = floats || type == onnx::TensorProto::FLOAT;
    }
  }
  return floats;
}

// Returns the operator of a test; tests of a function's body are named after the function's test.
std::string OperatorOf(const onnx::ModelProto& model, const fs::path& folder) {
  const std::string name = folder.filename();
  const size_t expanded = name.find("_expanded");
  if (expanded != std::string::npos) {
    const fs::path whole = folder.parent_path() / name.substr(0, expanded) / "model.onnx";
    onnx::ModelProto function;
    if (fs::exists(whole) && function.ParseFromString(ReadFile(whole))) {
      return OperatorOf(function, whole.parent_path());
    }
  }
  if (model.graph().node_size() == 0) return "none";
  const onnx::NodeProto& node = model.graph().node(model.graph().node_size() - 1);
  return node.domain().empty() ? node.op_type() : absl::StrCat(node.domain(), ".", node.op_type());
}

int Main(const fs::path& data, const std::set<std::string>& wanted) {
  OpRegistry registry;
  RegisterAllOperators(registry);
  std::vector<fs::path> folders;
  for (const auto& entry : fs::directory_iterator(data)) {
    const std::string name = entry.path().filename();
    if (entry.is_directory() && (wanted.empty() || wanted.count(name) > 0)) {
      folders.push_back(entry.path());
    }
  }
  std::sort(folders.begin(), folders.end());
  for (const fs::path& folder : folders) {
    const std::string bytes = ReadFile(folder / "model.onnx");
    onnx::ModelProto model;
    if (!model.ParseFromString(bytes)) return 1;
    const Outcome outcome = Isolated(registry, model, bytes, folder);
    std::cout << folder.filename().string() << '\t' << outcome.status << '\t'
              << OperatorOf(model, folder) << '\t' << (IsFloatTest(model) ? "float" : "other")
              << '\t' << absl::StrReplaceAll(outcome.reason, {{"\n", " "}, {"\t", " "}}) << '\n'
              << std::flush;  // so that no forked child writes it again
  }
  return folders.empty() ? 1 : 0;
}

}  // namespace
}  // namespace espalier

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  return espalier::Main(argv[1], {argv + 2, argv + argc});
}
