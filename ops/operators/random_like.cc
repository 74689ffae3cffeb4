#include "absl/strings/str_cat.h"
#include "ops/operators/elementwise.h"
#include "ops/operators/expect.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterRandomLike(OpRegistry& registry) {
  OpDef def = MakeUnary(
      {.name = "random_like",
       .doc = "y[as x] = random numbers, new in each step, chosen by the element's index in the "
              "whole tensor; uniform: a + (b - a) * u, u in [0, 1); normal: a + b * z",
       .flops = 20,
       .any_type = true,
       .attributes = {{.name = "distribution",
                       .kind = AttributeKind::kString,
                       .default_value = std::string("uniform"),
                       .doc = "uniform or normal"},
                      FloatAttribute("a", 0, "lower bound, or mean"),
                      FloatAttribute("b", 1, "upper bound, or standard deviation")},
       .output = DType::kF32,
       .differentiable = false,
       .precision = Precision::kF32});
  def.random = true;
  def.infer = [like =
                   def.infer](const NodeTypes& types) -> absl::StatusOr<std::vector<TensorType>> {
    const std::string distribution = types.attributes.String("distribution");
    if (distribution != "uniform" && distribution != "normal") {
      return AttributeError("random_like", "distribution", absl::StrCat("'", distribution, "'"),
                            "uniform or normal");
    }
    return like(types);
  };
  registry.Add(std::move(def));
}

}  // namespace espalier
