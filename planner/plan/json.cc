// ExportPlan and ImportPlan: see planner.h.
#include <google/protobuf/util/json_util.h>

#include "absl/strings/str_cat.h"
#include "planner/planner.h"

namespace espalier {
namespace {

// Protobuf's parser recurses; a plan is 4 levels deep.
constexpr int kMaxDepth = 32;

absl::Status CheckDepth(const std::string& json) {
  int depth = 0, line = 1;
  bool quoted = false;
  for (size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (c == '\n') ++line;
    if (quoted) {
      if (c == '\\') ++i;
      if (c == '"') quoted = false;
    } else if (c == '"') {
      quoted = true;
    } else if (c == '{' || c == '[') {
      if (++depth > kMaxDepth) {
        return absl::InvalidArgumentError(absl::StrCat("plan: line ", line,
                                                       ": nested more than ", kMaxDepth,
                                                       " deep; a plan is 4 deep"));
      }
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return absl::OkStatus();
}

// The line on which the longest prefix that could still become valid ends: protobuf says what was wrong,
// with the text around it, but not where.
int LineOf(const std::string& json, const std::string& message) {
  // The message shows an excerpt of the text and a caret under the place.
  const size_t first = message.find('\n');
  if (first == std::string::npos) return 0;
  const size_t second = message.find('\n', first + 1);
  const std::string excerpt = message.substr(
      first + 1, (second == std::string::npos ? message.size() : second) - first - 1);
  if (excerpt.empty()) return 0;
  const size_t at = json.find(excerpt);
  if (at == std::string::npos || json.find(excerpt, at + 1) != std::string::npos) return 0;
  int line = 1;
  for (size_t i = 0; i < at; ++i) line += json[i] == '\n';
  return line;
}

}  // namespace

absl::StatusOr<std::string> ExportPlan(const proto::Plan& plan) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.preserve_proto_field_names = true;
  std::string json;
  const auto status = google::protobuf::util::MessageToJsonString(plan, &json, options);
  if (!status.ok()) {
    return absl::InternalError(absl::StrCat("cannot write the plan: ", status.ToString()));
  }
  return json;
}

absl::StatusOr<proto::Plan> ImportPlan(const std::string& json) {
  if (absl::Status status = CheckDepth(json); !status.ok()) return status;
  proto::Plan plan;
  google::protobuf::util::JsonParseOptions options;
  const auto status = google::protobuf::util::JsonStringToMessage(json, &plan, options);
  if (!status.ok()) {
    const std::string message(status.message().data(), status.message().size());
    const int line = LineOf(json, message);
    return absl::InvalidArgumentError(
        absl::StrCat("plan: ", line > 0 ? absl::StrCat("line ", line, ": ") : "", message));
  }
  if (plan.format_version() != 1) {
    return absl::InvalidArgumentError(absl::StrCat("plan: field 'format_version' is ",
                                                   plan.format_version(), ", expected 1"));
  }
  for (int i = 0; i < plan.operators_size(); ++i) {
    if (plan.operators(i).node().empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("plan: field 'operators[", i, "].node' is missing"));
    }
  }
  return plan;
}

}  // namespace espalier
