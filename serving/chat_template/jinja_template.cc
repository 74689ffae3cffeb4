#include "serving/chat_template/jinja_template.h"

#include <utility>

#include "serving/chat_template/ast.h"
#include "serving/chat_template/evaluator.h"
#include "serving/chat_template/parser.h"

namespace espalier::jinja {
namespace {

constexpr size_t kMaxTemplateBytes = 1 << 20;

}  // namespace

absl::StatusOr<Template> Template::Parse(absl::string_view source) {
  if (source.size() > kMaxTemplateBytes) {
    return absl::InvalidArgumentError("chat template: larger than 1 MiB");
  }
  absl::StatusOr<std::unique_ptr<Node>> root = ParseTemplate(source);
  if (!root.ok()) {
    return absl::Status(root.status().code(),
                        "chat template, " + std::string(root.status().message()));
  }
  return Template(std::shared_ptr<const Node>(*std::move(root)));
}

absl::StatusOr<std::string> Template::Render(const nlohmann::ordered_json& variables,
                                             const RenderOptions& options) const {
  const absl::StatusOr<Value> value = FromJson(variables);
  if (!value.ok()) return value.status();
  if (value->AsDict() == nullptr) {
    return absl::InvalidArgumentError("the variables of a chat template are no object");
  }
  std::string out;
  Evaluator evaluator(options, &out);
  if (absl::Status status = evaluator.Render(*root_, *value->AsDict()); !status.ok()) return status;
  return out;
}

}  // namespace espalier::jinja
