#include "absl/strings/str_cat.h"
#include "ops/operators/elementwise.h"
#include "ops/operators/expect.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterDropout(OpRegistry& registry) {
  OpDef def =
      MakeUnary({.name = "dropout",
                 .doc = "training: y = x / (1 - rate) with probability 1 - rate, else 0, chosen "
                        "by the element's index in the whole tensor; otherwise y = x",
                 .flops = 15});
  def.attributes = {{.name = "rate",
                     .kind = AttributeKind::kFloat,
                     .default_value = 0.5,
                     .doc = "probability of a zero, in [0, 1)"}};
  def.random = true;
  def.infer = [same_type =
                   def.infer](const NodeTypes& types) -> absl::StatusOr<std::vector<TensorType>> {
    const double rate = types.attributes.Float("rate");
    if (!(rate >= 0 && rate < 1)) {
      return AttributeError("dropout", "rate", absl::StrCat(rate), "a number in [0, 1)");
    }
    return same_type(types);
  };
  registry.Add(std::move(def));
}

}  // namespace espalier
