#include "ops/quantized/quantize_graph.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/quantized/pack.h"
#include "ops/tensor/half_conversion.h"

namespace espalier {
namespace {

int BitsOf(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32:
      return 32;
    case WeightFormat::kBF16:
    case WeightFormat::kF16:
      return 16;
    case WeightFormat::kInt8:
      return 8;
    case WeightFormat::kInt4:
      return 4;
  }
  return 32;
}

constexpr WeightFormat kFormats[] = {WeightFormat::kF32, WeightFormat::kBF16, WeightFormat::kF16,
                                     WeightFormat::kInt8, WeightFormat::kInt4};

// A matrix [out, in], or a stack [experts, out, in].
TensorType TypeOf(WeightFormat format, const Dims& dims) {
  if (format == WeightFormat::kBF16) return {DType::kBF16, dims};
  if (format == WeightFormat::kF16) return {DType::kF16, dims};
  const size_t rank = dims.size();
  const PackedWeights packed{BitsOf(format), dims[rank - 2], dims[rank - 1]};
  Dims blocks = {packed.blocks(), packed.block_bytes()};
  if (rank == 3) blocks.insert(blocks.begin(), dims[0]);
  return {DType::kU8, blocks};
}

// Operators whose second input is a weight, and their quantized forms.
const char* QuantizedOp(const std::string& op) {
  if (op == "linear") return "quantized_linear";
  return op == "expert_linear" ? "quantized_expert_linear" : nullptr;
}

// By value: router scores, and the terms that they are sums of (an adapter's).
std::vector<bool> RouterScores(const Graph& graph) {
  std::vector<bool> scores(graph.values().size(), false);
  for (auto node = graph.nodes().rbegin(); node != graph.nodes().rend(); ++node) {
    const bool sum = node->op == "add" && scores[static_cast<size_t>(node->outputs[0])];
    if (!sum && node->op != "arg_top_k") continue;
    for (const ValueId input : node->inputs) scores[static_cast<size_t>(input)] = true;
  }
  return scores;
}

}  // namespace

const char* Name(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32:
      return "f32";
    case WeightFormat::kBF16:
      return "bf16";
    case WeightFormat::kF16:
      return "f16";
    case WeightFormat::kInt8:
      return "int8";
    case WeightFormat::kInt4:
      return "int4";
  }
  return "";
}

absl::StatusOr<WeightFormat> WeightFormatOf(absl::string_view name) {
  if (name.empty()) return WeightFormat::kF32;
  for (const WeightFormat format : kFormats) {
    if (name == Name(format)) return format;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("weight format '", name, "', expected f32, bf16, f16, int8 or int4"));
}

absl::StatusOr<Graph> QuantizeLinears(const OpRegistry& registry, const Graph& graph,
                                      WeightFormat format) {
  return QuantizeLinears(registry, graph, [format](const std::string&) { return format; });
}

absl::StatusOr<Graph> QuantizeLinears(const OpRegistry& registry, const Graph& given,
                                      const WeightFormats& formats) {
  // Types of computed values decide what can be packed.
  Graph graph = given;
  if (absl::Status status = BindAndInfer(registry, 1, &graph); !status.ok()) return status;
  std::map<ValueId, WeightFormat> chosen;
  std::vector<bool> quantized(graph.nodes().size(), false);
  std::vector<bool> needed(graph.values().size(), false);  // needed in its original form
  for (const auto& [name, value] : graph.outputs) needed[static_cast<size_t>(value)] = true;
  const std::vector<bool> scores = RouterScores(graph);
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    const Node& node = graph.nodes()[n];
    const auto is_f32 = [&](ValueId v) { return graph.value(v).type.dtype == DType::kF32; };
    quantized[n] = QuantizedOp(node.op) != nullptr && node.forward == kNoNode &&
                   graph.value(node.inputs[1]).kind == ValueKind::kParameter &&
                   is_f32(node.inputs[0]) && is_f32(node.inputs[1]) &&
                   !scores[static_cast<size_t>(node.outputs[0])];
    if (quantized[n]) {
      const ValueId weight = node.inputs[1];
      const auto found = chosen.find(weight);
      const WeightFormat format =
          found != chosen.end() ? found->second : formats(graph.value(weight).name);
      quantized[n] = format != WeightFormat::kF32;
      chosen[weight] = format;
    }
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (node.inputs[i] == kNoValue || (quantized[n] && i == 1)) continue;
      needed[static_cast<size_t>(node.inputs[i])] = true;
    }
  }

  if (std::none_of(quantized.begin(), quantized.end(), [](bool q) { return q; })) return given;

  Graph result;
  result.name = graph.name;
  result.metadata = graph.metadata;
  std::vector<ValueId> moved(graph.values().size(), kNoValue);
  for (size_t v = 0; v < graph.values().size(); ++v) {
    const Value& value = graph.values()[v];
    if (value.kind == ValueKind::kComputed) continue;
    if (value.kind == ValueKind::kParameter && !needed[v]) continue;
    moved[v] = result.AddValue(value);
  }
  std::map<ValueId, ValueId> packed;
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    Node node = graph.nodes()[n];
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      ValueId& input = node.inputs[i];
      if (input == kNoValue) continue;
      if (!quantized[n] || i != 1) {
        input = moved[static_cast<size_t>(input)];
        continue;
      }
      const Value& source = graph.value(input);
      const WeightFormat format = chosen.at(input);
      auto [found, is_new] = packed.try_emplace(input, kNoValue);
      if (is_new) {
        Value value;
        value.name = absl::StrCat(source.name, ".", Name(format));
        value.kind = ValueKind::kParameter;
        value.trainable = false;
        value.type = TypeOf(format, source.type.dims);
        found->second = result.AddValue(std::move(value));
      }
      input = found->second;
      node.op = QuantizedOp(node.op);
      node.attributes.Set("bits", static_cast<int64_t>(BitsOf(format)));
      node.attributes.Set("out", source.type.dims[source.type.dims.size() - 2]);
      node.attributes.Set("source", source.name);
    }
    for (ValueId& output : node.outputs) {
      if (output == kNoValue) continue;
      Value value = graph.value(output);
      const size_t old = static_cast<size_t>(output);
      output = result.AddValue(std::move(value));
      moved[old] = output;
    }
    result.AddNode(std::move(node));
  }
  for (const auto& [name, value] : graph.outputs) {
    result.outputs.emplace_back(name, moved[static_cast<size_t>(value)]);
  }
  if (absl::Status status = BindAndInfer(registry, 1, &result); !status.ok()) return status;
  return result;
}

absl::StatusOr<std::vector<char>> QuantizeWeight(absl::string_view source, WeightFormat format,
                                                 int64_t out, int64_t in, const float* weights) {
  const TensorType type = TypeOf(format, {out, in});
  std::vector<char> bytes(static_cast<size_t>(type.bytes()));
  auto* const to = reinterpret_cast<uint16_t*>(bytes.data());
  absl::Status status;
  if (type.dtype == DType::kF16) {
    status = ExpectF16(source, weights, out * in);
    for (int64_t i = 0; i < out * in; ++i) to[i] = F32ToF16(weights[i]);
  } else if (type.dtype == DType::kBF16) {
    for (int64_t i = 0; i < out * in; ++i) to[i] = F32ToBF16(weights[i]);
  } else {
    status =
        Pack(source, {BitsOf(format), out, in}, weights, reinterpret_cast<uint8_t*>(bytes.data()));
  }
  if (!status.ok()) return status;
  return bytes;
}

}  // namespace espalier
