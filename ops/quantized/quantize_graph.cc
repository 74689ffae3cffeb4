#include "ops/quantized/quantize_graph.h"

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/quantized/pack.h"
#include "ops/tensor/narrow.h"

namespace espalier {
namespace {

int BitsOf(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32:
      return 32;
    case WeightFormat::kBF16:
      return 16;
    case WeightFormat::kInt8:
      return 8;
    case WeightFormat::kInt4:
      return 4;
  }
  return 32;
}

constexpr WeightFormat kFormats[] = {WeightFormat::kF32, WeightFormat::kBF16, WeightFormat::kInt8,
                                     WeightFormat::kInt4};

TensorType TypeOf(int bits, const Dims& matrix) {
  if (bits == 16) return {DType::kBF16, matrix};
  const PackedWeights packed{bits, matrix[0], matrix[1]};
  return {DType::kU8, {packed.blocks(), packed.block_bytes()}};
}

}  // namespace

const char* Name(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32:
      return "f32";
    case WeightFormat::kBF16:
      return "bf16";
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
      absl::StrCat("weight format '", name, "', expected f32, bf16, int8 or int4"));
}

absl::StatusOr<Graph> QuantizeLinears(const OpRegistry& registry, const Graph& given,
                                      WeightFormat format) {
  if (format == WeightFormat::kF32) return given;
  // Types of computed values decide what can be packed.
  Graph graph = given;
  if (absl::Status status = BindAndInfer(registry, 1, &graph); !status.ok()) return status;
  const int bits = BitsOf(format);
  std::vector<bool> quantized(graph.nodes().size(), false);
  std::vector<bool> needed(graph.values().size(), false);  // as it is
  for (const auto& [name, value] : graph.outputs) needed[static_cast<size_t>(value)] = true;
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    const Node& node = graph.nodes()[n];
    if (node.op == "expert_linear") {
      return absl::UnimplementedError(
          absl::StrCat("weight format ", Name(format), ": node '", node.name,
                       "' is a mixture of experts, whose matrices can only be kept in f32"));
    }
    const auto is_f32 = [&](ValueId v) { return graph.value(v).type.dtype == DType::kF32; };
    quantized[n] = node.op == "linear" && node.forward == kNoNode &&
                   graph.value(node.inputs[1]).kind == ValueKind::kParameter &&
                   is_f32(node.inputs[0]) && is_f32(node.inputs[1]);
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (node.inputs[i] == kNoValue || (quantized[n] && i == 1)) continue;
      needed[static_cast<size_t>(node.inputs[i])] = true;
    }
  }

  Graph result;
  result.name = graph.name;
  result.metadata = graph.metadata;
  result.metadata["weight_format"] = Name(format);
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
      auto [found, is_new] = packed.try_emplace(input, kNoValue);
      if (is_new) {
        Value value;
        value.name = absl::StrCat(source.name, ".", Name(format));
        value.kind = ValueKind::kParameter;
        value.trainable = false;
        value.type = TypeOf(bits, source.type.dims);
        found->second = result.AddValue(std::move(value));
      }
      input = found->second;
      node.op = "quantized_linear";
      node.attributes.Set("bits", static_cast<int64_t>(bits));
      node.attributes.Set("out", source.type.dims[0]);
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

absl::StatusOr<std::vector<char>> QuantizeWeight(absl::string_view source, int bits, int64_t out,
                                                 int64_t in, const float* weights) {
  const TensorType type = TypeOf(bits, {out, in});
  std::vector<char> bytes(static_cast<size_t>(type.bytes()));
  if (bits == 16) {
    auto* const to = reinterpret_cast<uint16_t*>(bytes.data());
    for (int64_t i = 0; i < out * in; ++i) to[i] = F32ToBF16(weights[i]);
    return bytes;
  }
  if (absl::Status status =
          Pack(source, {bits, out, in}, weights, reinterpret_cast<uint8_t*>(bytes.data()));
      !status.ok()) {
    return status;
  }
  return bytes;
}

}  // namespace espalier
