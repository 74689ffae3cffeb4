#include "models/model_builder.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

// Hugging Face's names of activations and the operators.
struct Activated {
  const char* name;
  const char* op;
  const char* approximate;  // of gelu
};
constexpr Activated kActivations[] = {
    {"silu", "silu", ""},          {"swish", "silu", ""},
    {"relu", "relu", ""},          {"gelu", "gelu", "none"},
    {"tanh", "tanh", ""},          {"gelu_python", "gelu", "none"},
    {"sigmoid", "sigmoid", ""},    {"gelu_new", "gelu", "tanh"},
    {"gelu_fast", "gelu", "tanh"}, {"gelu_pytorch_tanh", "gelu", "tanh"}};

const Activated* FindActivation(const std::string& name) {
  for (const Activated& a : kActivations) {
    if (name == a.name) return &a;
  }
  return nullptr;
}

}  // namespace

ModelBuilder::ModelBuilder(const OpRegistry& registry, const LanguageModel& model, Form form)
    : facts_(model.facts), form_(std::move(form)), b_(registry, form_.graph_name) {
  b_.Metadata("family", facts_.family);
  b_.Metadata("config", facts_.config);
}

ValueId ModelBuilder::TokenEmbedding(const std::string& name, int64_t count, int64_t size) {
  const ValueId table = Parameter(name + ".weight", {count, size}, {Initializer::kNormal, 0.02});
  tables_[name] = table;
  return Op("embedding", {tokens_, table}, {}, name);
}

ValueId ModelBuilder::Table(const std::string& name) const {
  const auto it = tables_.find(name);
  return it == tables_.end() ? kNoValue : it->second;
}

ValueId ModelBuilder::LayerNorm(const std::string& name, ValueId x, int64_t size, double epsilon,
                                bool weight, bool bias) {
  std::vector<ValueId> inputs = {x};
  if (weight || bias) {
    inputs.push_back(weight ? Parameter(name + ".weight", {size}, {Initializer::kOnes}) : kNoValue);
  }
  if (bias) inputs.push_back(Parameter(name + ".bias", {size}, {Initializer::kZeros}));
  return Op("layer_norm", inputs, {{"epsilon", epsilon}}, name);
}

ValueId ModelBuilder::Reshape(ValueId x, const Dims& last) {
  // Keep 0: the number of rows follows the batch.
  Dims shape(form_.leading, 0);
  shape.insert(shape.end(), last.begin(), last.end());
  return Op("reshape", {x}, {{"shape", shape}});
}

ValueId ModelBuilder::RmsNorm(const std::string& name, ValueId x, int64_t size, double epsilon,
                              double add, int64_t heads) {
  const ValueId weight = NormWeight(name + ".weight", size, add);
  if (heads == 1) return Op("rms_norm", {x, weight}, {{"epsilon", epsilon}}, name);
  x = Reshape(x, {heads, size});
  x = Op("rms_norm", {x, weight}, {{"epsilon", epsilon}}, name);
  return Reshape(x, {heads * size});
}

ValueId ModelBuilder::Activation(const std::string& hf_name, ValueId x) {
  const Activated* a = FindActivation(hf_name);
  if (a == nullptr) return kNoValue;
  Attributes attributes;
  if (a->approximate[0] != 0) attributes.Set("approximate", std::string(a->approximate));
  return Op(a->op, {x}, std::move(attributes));
}

ValueId ModelBuilder::Rotary(ValueId x, const Rope& rope) {
  std::vector<ValueId> inputs = {x};
  if (positions_ != kNoValue) inputs.push_back(positions_);
  return Op("rotary", inputs,
            {{"head_dim", rope.head_dim},
             {"theta", rope.theta},
             {"frequencies", FrequenciesFor(rope, form_.longest_sequence)},
             {"magnitude", rope.magnitude}});
}

ValueId ModelBuilder::Op(const std::string& op, const std::vector<ValueId>& inputs,
                         Attributes attributes, const std::string& name) {
  return b_.Op(op, inputs, std::move(attributes), NodeName(op, name));
}

void ModelBuilder::Ignore(std::vector<std::string> endings) {
  weights_.ignored.insert(weights_.ignored.end(), endings.begin(), endings.end());
}

std::string ReadActivation(ConfigReader& config, const std::string& field,
                           const std::string& otherwise) {
  const std::string name = config.Text(field, otherwise);
  if (FindActivation(name) != nullptr) return name;
  std::string accepted;
  for (const Activated& a : kActivations) {
    absl::StrAppend(&accepted, accepted.empty() ? "\"" : ", \"", a.name, "\"");
  }
  config.Refuse(field, accepted, /*unsupported=*/true);
  return otherwise;
}

std::vector<float> AlibiSlopes(int64_t heads) {
  const int64_t whole =
      static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(std::max<int64_t>(1, heads))));
  std::vector<float> slopes;
  const auto slope = [](int64_t power, int64_t of) {
    return static_cast<float>(
        std::exp2(-8.0 * static_cast<double>(power) / static_cast<double>(of)));
  };
  for (int64_t i = 1; i <= whole; ++i) slopes.push_back(slope(i, whole));
  // The remaining heads get every second slope of twice as many heads.
  for (int64_t i = 1; static_cast<int64_t>(slopes.size()) < heads; i += 2) {
    slopes.push_back(slope(i, 2 * whole));
  }
  return slopes;
}

}  // namespace espalier
