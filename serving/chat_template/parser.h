// From tokens to a tree, after Jinja2's grammar.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "serving/chat_template/ast.h"

namespace espalier::jinja {

// InvalidArgument or Unimplemented with the line: no template, or one with what chat templates do
// not use (include, import, extends, blocks). Trees are bounded in depth.
absl::StatusOr<std::unique_ptr<Node>> ParseTemplate(absl::string_view source);

}  // namespace espalier::jinja
