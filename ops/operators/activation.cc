#include "ops/operators/activation.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "ops/operators/expect.h"

namespace espalier {
namespace {

constexpr absl::string_view kFromOutput[] = {"relu", "sigmoid", "tanh"};
constexpr absl::string_view kFromInput[] = {"gelu", "silu"};

template <size_t n>
bool Contains(const absl::string_view (&names)[n], absl::string_view name) {
  for (absl::string_view known : names) {
    if (name == known) return true;
  }
  return false;
}

}  // namespace

AttributeSpec ActivationAttribute() {
  return {"activation", AttributeKind::kString, std::string("none"), false,
          "applied to the result: none, relu, gelu (erf), silu, sigmoid, tanh"};
}

absl::Status ExpectActivation(absl::string_view op, const Attributes& attributes) {
  const std::string name = attributes.String("activation");
  if (name == "none" || Contains(kFromOutput, name) || Contains(kFromInput, name)) {
    return absl::OkStatus();
  }
  return AttributeError(op, "activation", absl::StrCat("'", name, "'"),
                        "none, relu, gelu, silu, sigmoid or tanh");
}

bool HasActivation(const Attributes& attributes) {
  return attributes.String("activation", "none") != "none";
}

bool ActivationNeeds(const Attributes& attributes, bool is_output, int index) {
  const std::string name = attributes.String("activation", "none");
  if (is_output) return Contains(kFromOutput, name);
  return index < 2 || Contains(kFromInput, name);  // the bias only to recompute y
}

}  // namespace espalier
