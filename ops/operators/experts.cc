#include "ops/operators/experts.h"

#include <cmath>

#include "absl/strings/str_cat.h"

namespace espalier {

std::vector<AttributeSpec> ExpertAttributes() {
  return {{"n", AttributeKind::kInt, std::nullopt, true, "experts"},
          {"alpha", AttributeKind::kFloat, 1.0, false,
           "capacity of an expert, relative to an even share of the choices"}};
}

absl::Status ExpectAssign(const InputRef& assign, int64_t samples) {
  ESPALIER_RETURN_IF_ERROR(ExpectDType(assign, {DType::kI32}));
  return ExpectShape(assign, {samples, "k"}, absl::StrCat("there are ", samples, " samples"));
}

absl::StatusOr<int64_t> ExpertCapacity(absl::string_view op, const Attributes& attributes,
                                       int64_t samples, int64_t k) {
  const int64_t n = attributes.Int("n");
  const double alpha = attributes.Float("alpha");
  ESPALIER_RETURN_IF_ERROR(ExpectPositive(op, "n", n));
  if (!(alpha > 0) || !std::isfinite(alpha)) {
    return AttributeError(op, "alpha", absl::StrCat(alpha), "a positive number");
  }
  const double capacity = std::ceil(alpha * static_cast<double>(k) * static_cast<double>(samples) /
                                    static_cast<double>(n));
  if (capacity > 1e15) {
    return AttributeError(op, "alpha", absl::StrCat(alpha),
                          absl::StrCat("a capacity of less than 1e15 rows, not ", capacity));
  }
  return static_cast<int64_t>(capacity);
}

}  // namespace espalier
