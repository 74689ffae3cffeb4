#include "absl/strings/str_cat.h"
#include "ops/operators/expect.h"
#include "ops/operators/optimizer.h"
#include "ops/schema/registry.h"

namespace espalier {
namespace {

const char kRmspropUpdate[] = "rmsprop_update";

absl::Status ExpectBuffer(const NodeTypes& types, size_t input, const char* name,
                          const char* needed_for) {
  if (types.has_input(input)) return absl::OkStatus();
  return OpError(kRmspropUpdate,
                 absl::StrCat("input '", name, "' is missing, but attribute ", needed_for));
}

}  // namespace

void RegisterRmspropUpdate(OpRegistry& registry) {
  OpDef def = MakeUpdate(
      kRmspropUpdate,
      "g = scale * gradient + weight_decay * p; v = alpha v + (1 - alpha) g^2; centered: mean = "
      "alpha mean + (1 - alpha) g, v' = v - mean^2; d = g / (sqrt(v') + eps), with eps_in_sqrt "
      "g / sqrt(v' + eps); with momentum: buffer = momentum * buffer + d, d = buffer; p -= lr * d",
      {{"square average"}, {"momentum buffer", /*optional=*/true}, {"average", /*optional=*/true}},
      12);
  def.attributes = {{.name = "alpha", .kind = AttributeKind::kFloat, .default_value = 0.99},
                    {.name = "eps", .kind = AttributeKind::kFloat, .default_value = 1e-8},
                    {.name = "weight_decay", .kind = AttributeKind::kFloat, .default_value = 0.0},
                    {.name = "momentum",
                     .kind = AttributeKind::kFloat,
                     .default_value = 0.0,
                     .doc = "in [0, 1); above 0 its buffer is needed"},
                    {.name = "centered",
                     .kind = AttributeKind::kBool,
                     .default_value = false,
                     .doc = "divide by the deviation; the average is needed"},
                    {.name = "eps_in_sqrt",
                     .kind = AttributeKind::kBool,
                     .default_value = false,
                     .doc = "add eps below the root, as Keras and optax do"}};
  def.infer = [types_match =
                   def.infer](const NodeTypes& types) -> absl::StatusOr<std::vector<TensorType>> {
    ESPALIER_RETURN_IF_ERROR(ExpectInRange(kRmspropUpdate, types.attributes, "alpha", 0, 1));
    ESPALIER_RETURN_IF_ERROR(ExpectInRange(kRmspropUpdate, types.attributes, "eps", 0, 1e6));
    ESPALIER_RETURN_IF_ERROR(
        ExpectInRange(kRmspropUpdate, types.attributes, "weight_decay", 0, 1e6));
    ESPALIER_RETURN_IF_ERROR(ExpectInRange(kRmspropUpdate, types.attributes, "momentum", 0, 1));
    if (types.attributes.Float("momentum") > 0) {
      ESPALIER_RETURN_IF_ERROR(ExpectBuffer(types, 5, "momentum buffer", "'momentum' is above 0"));
    }
    if (types.attributes.Bool("centered")) {
      ESPALIER_RETURN_IF_ERROR(ExpectBuffer(types, 6, "average", "'centered' is true"));
    }
    return types_match(types);
  };
  def.update = Update{.variants = {{"rmsprop", "RMSprop", 0.01, {}}},
                      .states = [](const Attributes& attributes, const Dims&) {
                        std::vector<Update::State> states(3);
                        states[0].name = "rmsprop_square";
                        if (attributes.Float("momentum") > 0) states[1].name = "momentum";
                        if (attributes.Bool("centered")) states[2].name = "rmsprop_average";
                        return states;
                      }};
  registry.Add(std::move(def));
}

}  // namespace espalier
