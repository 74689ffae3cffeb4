// Parses a template into a syntax tree, following Jinja2's grammar.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "serving/chat_template/ast.h"

namespace espalier::jinja {

// Returns InvalidArgument with the line for a malformed template, and Unimplemented for features
// that chat templates do not use (include, import, extends, blocks). The depth of trees is bounded.
absl::StatusOr<std::unique_ptr<Node>> ParseTemplate(absl::string_view source);

}  // namespace espalier::jinja
