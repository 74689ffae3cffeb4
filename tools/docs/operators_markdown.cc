// Writes docs/reference/operators.md from the operator registry. Reads one JSON object from
// standard input:
//   {"examples": {"softmax": {"attributes": {...}, "inputs": [null | {"dtype": "f32", "dims": [2,
//   3]}]}},
//    "cuda": ["softmax", ...], "onnx_tests": "contents of onnx_node_tests.txt"}
// The dimensions along which an operator can be split are those of its example.
#include <iostream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "ops/cpu/register_all.h"
#include "ops/onnx/export.h"
#include "ops/onnx/import.h"
#include "ops/operators/register_all.h"
#include "ops/schema/registry.h"
#include "tests/conformance/json.h"

namespace espalier {
namespace {

using nlohmann::json;

std::string ValueText(const AttributeValue& value) {
  return std::visit(
      [](const auto& v) -> std::string {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, bool>) {
          return v ? "true" : "false";
        } else if constexpr (std::is_same_v<T, std::string>) {
          return absl::StrCat("\"", v, "\"");
        } else if constexpr (std::is_arithmetic_v<T>) {
          return absl::StrCat(v);
        } else {
          return absl::StrCat("[", absl::StrJoin(v, ", "), "]");
        }
      },
      value);
}

const char* KindText(AttributeKind kind) {
  switch (kind) {
    case AttributeKind::kInt:
      return "integer";
    case AttributeKind::kFloat:
      return "number";
    case AttributeKind::kBool:
      return "bool";
    case AttributeKind::kString:
      return "string";
    case AttributeKind::kInts:
      return "integers";
    case AttributeKind::kFloats:
      return "numbers";
  }
  return "";
}

std::string SplitText(const OpDef& def, const json& examples) {
  if (!def.split) return "not at all";
  if (!examples.contains(def.name)) return "yes";
  const json& example = examples.at(def.name);
  NodeTypes types;
  types.attributes = conformance::AttributesFromJson(example.at("attributes"));
  for (const json& input : example.at("inputs")) {
    types.inputs.push_back(input.is_null()
                               ? TensorType{}
                               : TensorType{DTypeFromName(input.at("dtype").get<std::string>()),
                                            input.at("dims").get<std::vector<int64_t>>()});
  }
  if (!InferNode(def, &types).ok()) return "yes";
  std::vector<std::string> axes, shapes;
  for (const Axis& axis : SplitOf(def, types).axes) {
    axes.push_back(absl::StrCat(axis.name, " (", conformance::KindName(axis.kind), ")"));
  }
  for (const TensorType& input : types.inputs) {
    shapes.push_back(input.dtype == DType::kInvalid ? "none" : ToString(input.dims));
  }
  return absl::StrCat(axes.empty() ? "nothing" : absl::StrJoin(axes, ", "),
                      ", for inputs of shape ", absl::StrJoin(shapes, ", "));
}

void PrintOperator(const OpDef& def, const json& facts, const KernelRegistry& cpu,
                   const std::set<std::string>& cuda, const std::set<std::string>& written) {
  std::cout << "## " << def.name << "\n\n" << def.doc << "\n\n";
  const auto arity = [](std::string* out, const Arity& input) {
    absl::StrAppend(out, "`", input.name, "`", input.variadic ? "..." : "",
                    input.optional ? " (optional)" : "");
  };
  std::cout << "- Inputs: "
            << (def.inputs.empty() ? "none" : absl::StrJoin(def.inputs, ", ", arity)) << "\n";
  if (def.num_outputs != 1) {
    std::cout << "- Outputs: "
              << (def.num_outputs < 0 ? "as many as its attributes say"
                                      : absl::StrCat(def.num_outputs))
              << "\n";
  }
  for (const AttributeSpec& spec : def.attributes) {
    std::cout << "- Attribute `" << spec.name << "` (" << KindText(spec.kind) << ", "
              << (spec.default_value.has_value() ? ValueText(*spec.default_value)
                  : spec.required                ? "required"
                                                 : "optional")
              << "): " << spec.doc << "\n";
  }
  if (!def.types.empty()) {
    std::cout << "- Types of input 0: "
              << absl::StrJoin(
                     def.types, ", ",
                     [](std::string* out, DType type) { absl::StrAppend(out, Name(type)); })
              << "\n";
  }
  std::cout << "- Splits along: " << SplitText(def, facts.at("examples")) << "\n";
  const bool on_cuda = cuda.count(def.name) > 0;
  std::cout << "- Gradient: "
            << (def.has_gradient()         ? "yes"
                : def.gradient.has_value() ? "none flows"
                                           : "no")
            << "; CPU: " << (cpu.Has(def.name) ? "yes" : "no")
            << "; CUDA: " << (on_cuda ? "yes" : "no") << "; ONNX: "
            << (def.onnx.has_value()          ? absl::StrCat("`", def.onnx->op_type, "`")
                : written.count(def.name) > 0 ? "written by a rule of its own"
                                              : "not written")
            << "\n\n";
}

struct Counts {
  int passed = 0, failed = 0, unsupported = 0;
  std::set<std::string> reasons;
};

// Removes the location and the list of accepted values, which the reader finds in this file.
std::string Reason(std::string text) {
  if (const size_t place = text.find("): "); place != std::string::npos && place < 120) {
    text = text.substr(place + 3);
  }
  return text.substr(0, text.find("; taken are float,"));
}

void PrintOnnx(const OpRegistry& registry, const std::string& tests) {
  std::map<std::string, Counts> operators;
  for (const std::string& name : SupportedOnnxOperators(registry)) operators[name];
  for (const auto& [name, reason] : UnsupportedOnnxOperators())
    operators[name].reasons.insert(reason);
  int passed = 0, total = 0, float_passed = 0, floats = 0;
  for (absl::string_view line : absl::StrSplit(tests, '\n', absl::SkipEmpty())) {
    const std::vector<std::string> fields = absl::StrSplit(line, '\t');
    if (fields.size() < 4) continue;
    Counts& counts = operators[fields[2]];
    ++(fields[1] == "passed"   ? counts.passed
       : fields[1] == "failed" ? counts.failed
                               : counts.unsupported);
    const bool good = fields[1] == "passed", is_float = fields[3] == "float";
    total += 1;
    passed += good;
    floats += is_float;
    float_passed += good && is_float;
    if (!good && fields.size() > 4 && UnsupportedOnnxOperators().count(fields[2]) == 0) {
      counts.reasons.insert(Reason(fields[4]));
    }
  }
  std::cout
      << "# ONNX operators\n\nRead from opset " << kMinOnnxOpset << " to " << kMaxOnnxOpset
      << ", written in opset " << kExportedOnnxOpset
      << ". The counts are of the ONNX project's own backend node tests (`bazel test "
         "//tests/conformance:onnx_node_test`): "
      << passed << " of " << total << " pass, " << float_passed << " of the " << floats
      << " whose tensors are f32 among other types that Espalier has. What is not supported is "
         "refused when the file is imported, with the reason.\n\n"
         "| ONNX operator | passed | failed | not supported | why not |\n|---|---|---|---|---|\n";
  for (const auto& [name, counts] : operators) {
    std::vector<std::string> reasons(counts.reasons.begin(), counts.reasons.end());
    if (reasons.size() > 4) {
      reasons.resize(4);
      reasons.push_back("...");
    }
    std::cout << "| " << name << " | " << counts.passed << " | " << counts.failed << " | "
              << counts.unsupported << " | " << absl::StrJoin(reasons, "; ") << " |\n";
  }
}

int Main() {
  const json facts = json::parse(std::cin);
  OpRegistry registry;
  RegisterAllOperators(registry);
  KernelRegistry cpu;
  RegisterCpuKernels(cpu);
  std::set<std::string> cuda, written;
  for (const json& name : facts.at("cuda")) cuda.insert(name.get<std::string>());
  for (const std::string& name : ExportableOperators()) written.insert(name);
  std::cout
      << "<!-- Made by `bazel run //tools/docs:operators`; do not edit. -->\n"
         "# Operators\n\n"
         "What graphs are made of. Dimensions written `...` are any leading ones. Every operator "
         "may be split along the dimensions named here; those marked (reduction) leave partial "
         "sums.\n\n";
  for (const OpDef* def : registry.All()) PrintOperator(*def, facts, cpu, cuda, written);
  PrintOnnx(registry, facts.at("onnx_tests").get<std::string>());
  return 0;
}

}  // namespace
}  // namespace espalier

int main() { return espalier::Main(); }
