#include "server/replay/graph_fragments.h"

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "ops/graph/graph_proto.h"
#include "ops/onnx/cpu_evaluator.h"
#include "ops/onnx/import.h"
#include "ops/onnx/model_inputs.h"
#include "server/replay/evaluate_nodes.h"
#include "server/replay/source_rows.h"

namespace espalier {
namespace {

constexpr int kMostFragments = 64;
constexpr size_t kMostFragmentBytes = 1 << 20;
constexpr size_t kLongestFragmentName = 200;
// Of constants that the nodes of an ONNX file create, of what the graphs of a replay read in a
// step, and of all values that one of them computes: an operator can make much of little.
constexpr int64_t kMostConstantBytes = 64 << 20;
constexpr double kMostReadBytes = 256 << 20, kMostValueBytes = 1 << 30;

absl::Status OfFragment(const std::string& name, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat("graph '", name, "': ", status.message()));
}

absl::Status CheckFragmentName(const std::string& name) {
  const bool good = !name.empty() && name.size() <= kLongestFragmentName &&
                    std::none_of(name.begin(), name.end(), [](char c) {
                      return absl::ascii_iscntrl(static_cast<unsigned char>(c)) || c == '*';
                    });
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("its name, or that of an output, is '",
                                                 name.substr(0, kLongestFragmentName),
                                                 "'; accepted: 1 to ", kLongestFragmentName,
                                                 " bytes without '*', as answers have"
                                                 " this name"));
}

// The name that a user gives: as bare names of probes are, so that history can be asked for it.
absl::Status CheckGivenName(const std::string& name) {
  constexpr char kNot[] = " ,()'\"";
  if (name.find_first_of(kNot) == std::string::npos) return CheckFragmentName(name);
  return absl::InvalidArgumentError(
      absl::StrCat("its name has one of the characters space , ( ) ' \"; accepted: a name without "
                   "them, as the answers are asked for by it"));
}

double BytesOf(const TensorType& type) {
  double elements = 1;
  for (const int64_t extent : type.dims) elements *= static_cast<double>(extent);
  return elements * static_cast<double>(SizeOf(type.dtype));
}

absl::Status CheckSize(const Graph& graph) {
  double bytes = 0;
  for (const Value& value : graph.values()) bytes += BytesOf(value.type);
  if (bytes <= kMostValueBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("its values have ", bytes, " bytes together; accepted: ", kMostValueBytes));
}

absl::StatusOr<ProbeExpression> SourceOf(const std::string& input) {
  absl::StatusOr<ProbeExpression> probe = ParseProbe(input);
  if (!probe.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("its input '", input, "' is no name of a value: ", probe.status().message()));
  }
  if (probe->reduction.kind != Reduction::kFull || probe->targets.size() != 1 ||
      absl::StrContains(probe->targets[0].slot, '*')) {
    return absl::InvalidArgumentError(
        absl::StrCat("its input '", input,
                     "' is not one tensor; accepted: names such as relu_1, param(w), grad(w), "
                     "update(w), state(w, adam_m) and batch(x); the graph itself can compute "
                     "reductions"));
  }
  return probe;
}

// Values that the graph brings are constants: nothing trains them.
absl::Status MakeParametersConstant(Graph* graph) {
  for (size_t v = 0; v < graph->values().size(); ++v) {
    Value& value = graph->mutable_value(static_cast<ValueId>(v));
    if (value.kind == ValueKind::kParameter && !value.constant.empty()) {
      value.kind = ValueKind::kConstant;
    }
    if (value.kind == ValueKind::kParameter || value.kind == ValueKind::kState) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", value.name,
                       "' is a parameter without values; accepted: an input named "
                       "param(",
                       value.name, "), or a parameter with its values"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckOperators(const OpRegistry& registry, const Graph& graph) {
  for (const Node& node : graph.nodes()) {
    const OpDef* op = registry.Find(node.op);
    if (op == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(Describe(node), ": no such operator"));
    }
    if (op->random) {
      return absl::InvalidArgumentError(
          absl::StrCat(Describe(node), " draws random numbers; accepted: operators that do not"));
    }
  }
  return absl::OkStatus();
}

absl::Status ParseGraph(const OpRegistry& registry, const v1::ReplayGraph& message,
                        GraphFragment* fragment) {
  const auto add = [&](const std::string& name, DType dtype, std::optional<Dims> dims) {
    absl::StatusOr<ProbeExpression> source = SourceOf(name);
    if (!source.ok()) return source.status();
    const ProbeTarget& target = source->targets[0];
    if (target.has_wildcard()) {
      if (fragment->pattern.empty()) fragment->pattern = target.name;
      if (fragment->pattern != target.name) {
        return absl::InvalidArgumentError(absl::StrCat(
            "its inputs have the patterns '", fragment->pattern, "' and '", target.name,
            "'; accepted: one, as the graph is evaluated for each name that matches"));
      }
    }
    fragment->inputs.push_back({name, *std::move(source), dtype, std::move(dims)});
    return absl::OkStatus();
  };
  if (message.kind_case() == v1::ReplayGraph::kOnnx) {
    const absl::StatusOr<std::vector<OnnxInput>> inputs = OnnxInputsOf(message.onnx());
    if (!inputs.ok()) return inputs.status();
    for (const OnnxInput& input : *inputs) {
      if (absl::Status s = add(input.name, input.dtype, input.dims); !s.ok()) return s;
    }
    fragment->onnx = message.onnx();
  } else if (message.kind_case() == v1::ReplayGraph::kGraph) {
    absl::StatusOr<Graph> graph = FromProto(registry, message.graph());
    if (!graph.ok()) return graph.status();
    if (graph->outputs.empty()) {
      return absl::InvalidArgumentError("it has no output; name one, which is the answer");
    }
    if (absl::Status s = MakeParametersConstant(&*graph); !s.ok()) return s;
    if (absl::Status s = CheckOperators(registry, *graph); !s.ok()) return s;
    for (const Value& value : graph->values()) {
      if (value.kind != ValueKind::kInput) continue;
      std::optional<Dims> dims;  // a graph cannot say that it does not know the rank
      if (!value.type.dims.empty()) dims = value.type.dims;
      if (absl::Status s = add(value.name, value.type.dtype, std::move(dims)); !s.ok()) return s;
    }
    fragment->graph = *std::move(graph);
  } else {
    return absl::InvalidArgumentError("it has neither a graph nor an ONNX file");
  }
  if (!fragment->inputs.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "it has no input, so its answer is the same in each step; name inputs after what they read, "
      "such as grad(w)");
}

std::string DeclaredDims(const Dims& dims) {
  return absl::StrCat("[",
                      absl::StrJoin(dims, ", ",
                                    [](std::string* out, int64_t extent) {
                                      absl::StrAppend(out,
                                                      extent == -1 ? "?" : absl::StrCat(extent));
                                    }),
                      "]");
}

// Of an input, given what the run has.
absl::StatusOr<TensorType> InputType(const GraphFragment::Input& input, const TensorType& read) {
  const DType dtype = IsNarrow(read.dtype) && input.dtype == DType::kF32 ? DType::kF32 : read.dtype;
  bool fits = dtype == input.dtype;
  if (input.dims.has_value()) {
    fits = fits && input.dims->size() == read.dims.size();
    for (size_t d = 0; fits && d < read.dims.size(); ++d) {
      fits = (*input.dims)[d] == -1 || (*input.dims)[d] == read.dims[d];
    }
  }
  if (fits) return TensorType{dtype, read.dims};
  return absl::InvalidArgumentError(
      absl::StrCat("its input '", input.name, "' is declared as ", Name(input.dtype),
                   input.dims.has_value() ? DeclaredDims(*input.dims) : "", "; in the run it is ",
                   ToString(read)));
}

absl::StatusOr<Graph> Translated(const OpRegistry& registry, const GraphFragment& fragment,
                                 const std::map<std::string, TensorType>& types) {
  ImportOptions options;
  options.evaluator = CpuEvaluator();
  options.max_constant_bytes = kMostConstantBytes;
  for (const auto& [name, type] : types) options.shapes[name] = type.dims;
  absl::StatusOr<Graph> graph = ImportOnnx(registry, fragment.onnx, options);
  if (!graph.ok()) return graph;
  if (absl::Status s = MakeParametersConstant(&*graph); !s.ok()) return s;
  if (absl::Status s = CheckOperators(registry, *graph); !s.ok()) return s;
  return graph;
}

}  // namespace

GraphFragment GraphFragment::For(const std::string& matching) const {
  GraphFragment made = *this;
  made.name = absl::StrCat(name, "(", matching, ")");
  made.pattern.clear();
  for (Input& input : made.inputs) {
    ProbeTarget& target = input.source.targets[0];
    if (target.has_wildcard()) target.name = matching;
  }
  return made;
}

std::vector<ProbeExpression> SourcesOf(const std::vector<GraphFragment>& fragments) {
  std::vector<ProbeExpression> sources;
  for (const GraphFragment& fragment : fragments) {
    for (const GraphFragment::Input& input : fragment.inputs) {
      if (std::find(sources.begin(), sources.end(), input.source) == sources.end()) {
        sources.push_back(input.source);
      }
    }
  }
  return sources;
}

absl::StatusOr<std::vector<GraphFragment>> ParseFragments(
    const OpRegistry& registry, const google::protobuf::RepeatedPtrField<v1::ReplayGraph>& graphs) {
  size_t bytes = 0;
  for (const v1::ReplayGraph& graph : graphs) bytes += graph.ByteSizeLong();
  if (graphs.size() > kMostFragments || bytes > kMostFragmentBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "graphs: ", graphs.size(), " of ", bytes, " bytes together; accepted: ", kMostFragments,
        " of ", kMostFragmentBytes, "; what they read of the run are inputs, not values inside"));
  }
  std::vector<GraphFragment> fragments;
  std::set<std::string> names;
  for (const v1::ReplayGraph& message : graphs) {
    GraphFragment& fragment = fragments.emplace_back();
    fragment.name = message.name();
    absl::Status status = CheckGivenName(fragment.name);
    if (status.ok() && !names.insert(fragment.name).second) {
      status = absl::InvalidArgumentError("another graph has this name, too");
    }
    if (status.ok()) status = ParseGraph(registry, message, &fragment);
    if (!status.ok()) return OfFragment(fragment.name, status);
  }
  return fragments;
}

absl::StatusOr<GraphFragments::Bound> GraphFragments::Bind(const OpRegistry& registry,
                                                           const GraphFragment& fragment,
                                                           const TypeOf& type_of) {
  std::map<std::string, TensorType> types;
  for (const GraphFragment::Input& input : fragment.inputs) {
    const absl::StatusOr<TensorType> read = type_of(input.source);
    if (!read.ok()) return read.status();
    absl::StatusOr<TensorType> type = InputType(input, *read);
    if (!type.ok()) return type.status();
    types[input.name] = *std::move(type);
  }
  absl::StatusOr<Graph> graph =
      fragment.graph.has_value() ? *fragment.graph : Translated(registry, fragment, types);
  if (!graph.ok()) return graph.status();
  Bound bound{fragment.name, *std::move(graph), {}, {}};
  for (size_t v = 0; v < bound.graph.values().size(); ++v) {
    const auto id = static_cast<ValueId>(v);
    Value& value = bound.graph.mutable_value(id);
    if (value.kind == ValueKind::kInput) value.type = types.at(value.name);
  }
  if (absl::Status s = BindAndInfer(registry, /*batch=*/1, &bound.graph); !s.ok()) return s;
  if (absl::Status s = CheckSize(bound.graph); !s.ok()) return s;
  for (const GraphFragment::Input& input : fragment.inputs) {
    const ValueId id = bound.graph.FindValue(input.name);
    // The translator leaves out what nothing reads.
    if (id != kNoValue) bound.inputs.emplace_back(id, TargetsToString(input.source));
  }
  for (const auto& [name, value] : bound.graph.outputs) {
    const bool only = bound.graph.outputs.size() == 1;
    bound.answers.emplace_back(only ? fragment.name : absl::StrCat(fragment.name, ".", name),
                               value);
    if (absl::Status s = CheckFragmentName(bound.answers.back().first); !s.ok()) return s;
  }
  return bound;
}

absl::StatusOr<GraphFragments> GraphFragments::Make(const OpRegistry& registry,
                                                    const std::vector<GraphFragment>& fragments,
                                                    const TypeOf& type_of) {
  GraphFragments made;
  double bytes = 0;
  std::set<std::string> answers;
  for (const GraphFragment& fragment : fragments) {
    absl::StatusOr<Bound> bound = Bind(registry, fragment, type_of);
    if (!bound.ok()) return OfFragment(fragment.name, bound.status());
    for (const auto& [name, value] : bound->answers) {
      if (answers.insert(name).second) continue;
      return OfFragment(fragment.name, absl::InvalidArgumentError(absl::StrCat(
                                           "another answer is named '", name, "', too")));
    }
    for (const GraphFragment::Input& input : fragment.inputs) {
      if (std::find(made.sources_.begin(), made.sources_.end(), input.source) !=
          made.sources_.end()) {
        continue;
      }
      made.sources_.push_back(input.source);
      const absl::StatusOr<TensorType> read = type_of(input.source);
      if (read.ok()) bytes += BytesOf(*read);
    }
    if (bytes > kMostReadBytes) {
      return OfFragment(fragment.name, absl::InvalidArgumentError(absl::StrCat(
                                           "the graphs read ", bytes,
                                           " bytes of each step; accepted: ", kMostReadBytes,
                                           "; ask for fewer, or for a reduction")));
    }
    made.bound_.push_back(*std::move(bound));
  }
  return made;
}

std::vector<std::pair<std::string, TensorType>> GraphFragments::answers() const {
  std::vector<std::pair<std::string, TensorType>> all;
  for (const Bound& bound : bound_) {
    for (const auto& [name, value] : bound.answers) {
      all.emplace_back(name, bound.graph.value(value).type);
    }
  }
  return all;
}

absl::StatusOr<std::vector<std::pair<std::string, v1::TensorValue>>> GraphFragments::Evaluate(
    const std::map<std::string, v1::TensorValue>& given) const {
  std::vector<std::pair<std::string, v1::TensorValue>> answers;
  for (const Bound& bound : bound_) {
    const Graph& graph = bound.graph;
    std::map<ValueId, std::string> values;
    for (const auto& [id, source] : bound.inputs) {
      const auto read = given.find(source);
      if (read == given.end()) {
        return OfFragment(bound.name,
                          absl::InternalError(absl::StrCat("'", source, "' was not read")));
      }
      absl::StatusOr<std::string> elements = ElementsAs(read->second, graph.value(id).type, source);
      if (!elements.ok()) return OfFragment(bound.name, elements.status());
      values[id] = *std::move(elements);
    }
    std::vector<NodeId> nodes;
    for (size_t n = 0; n < graph.nodes().size(); ++n) nodes.push_back(static_cast<NodeId>(n));
    const absl::Status evaluated = EvaluateNodes(graph, nodes, /*training=*/false, &values);
    if (!evaluated.ok()) return OfFragment(bound.name, evaluated);
    for (const auto& [name, id] : bound.answers) {
      const Value& value = graph.value(id);
      v1::TensorValue& tensor = answers.emplace_back(name, v1::TensorValue()).second;
      tensor.set_dtype(ToProto(value.type.dtype));
      tensor.mutable_dims()->Assign(value.type.dims.begin(), value.type.dims.end());
      tensor.set_data(value.kind == ValueKind::kConstant ? value.constant : values.at(id));
    }
  }
  return answers;
}

absl::StatusOr<std::vector<v1::HistoryRow>> GraphFragments::Complete(
    std::vector<v1::HistoryRow> rows, int64_t step) const {
  const absl::StatusOr<std::map<std::string, v1::TensorValue>> given =
      TakeSourceRows(sources_, step, &rows);
  if (!given.ok()) return given.status();
  auto answers = Evaluate(*given);
  if (!answers.ok()) {
    return absl::Status(answers.status().code(),
                        absl::StrCat(answers.status().message(), " (step ", step, ")"));
  }
  for (auto& [name, tensor] : *answers) {
    v1::HistoryRow& row = rows.emplace_back();
    row.set_step(step);
    row.set_name(name);
    row.set_reduction(ToString(Reduction{Reduction::kFull}));
    row.set_source(v1::HistoryRow::REPLAY);
    *row.mutable_value()->mutable_tensor() = std::move(tensor);
  }
  return rows;
}

}  // namespace espalier
