// ExportPlan and ImportPlan (planner.h).
#include <google/protobuf/util/json_util.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "planner/planner.h"

namespace espalier {
namespace {

// Protobuf's parser is recursive; a plan has 4 levels.
constexpr int kMaxDepth = 32;

// Finds syntax errors, with line and column, and nesting too deep for protobuf.
class SyntaxCheck : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool key(string_t&) override { return true; }
  bool start_object(std::size_t) override { return Enter(); }
  bool start_array(std::size_t) override { return Enter(); }
  bool end_object() override { return Leave(); }
  bool end_array() override { return Leave(); }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& e) override {
    error_ = e.what();
    // "[json.exception.parse_error.101] parse error at line 3, column 17: ..."
    const size_t end_of_id = error_.find("] ");
    if (end_of_id != std::string::npos) error_.erase(0, end_of_id + 2);
    return false;
  }
  const std::string& error() const { return error_; }

 private:
  bool Enter() {
    if (++depth_ <= kMaxDepth) return true;
    error_ = absl::StrCat("nested more than ", kMaxDepth, " deep; a plan is 4 deep");
    return false;
  }
  bool Leave() {
    --depth_;
    return true;
  }
  int depth_ = 0;
  std::string error_;
};

// Returns " (line 4)" if `name` occurs in quotes exactly once; otherwise "", as the message has the
// path.
std::string LineOf(const std::string& json, const std::string& name) {
  const std::string quoted = absl::StrCat("\"", name, "\"");
  const size_t at = json.find(quoted);
  if (name.empty() || at == std::string::npos) return "";
  if (json.find(quoted, at + 1) != std::string::npos) return "";
  return absl::StrCat(" (line ", 1 + std::count(json.begin(), json.begin() + at, '\n'), ")");
}

// Extracts the field from an error of protobuf's parser: "a.b[2].c: Cannot find field." -> "c".
std::string FieldIn(const std::string& message) {
  std::string path = message.substr(0, message.find(':'));
  path.erase(0, path.rfind('.') == std::string::npos ? 0 : path.rfind('.') + 1);
  path.erase(std::min(path.size(), path.find_first_of("[)")));
  path.erase(0, path.find_first_not_of('('));
  return path;
}

}  // namespace

absl::StatusOr<std::string> ExportPlan(const v1::Plan& plan) {
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

absl::StatusOr<v1::Plan> ImportPlan(const std::string& json) {
  SyntaxCheck syntax;
  if (!nlohmann::json::sax_parse(json, &syntax)) {
    return absl::InvalidArgumentError(absl::StrCat("plan: ", syntax.error()));
  }
  v1::Plan plan;
  google::protobuf::util::JsonParseOptions options;
  const auto status = google::protobuf::util::JsonStringToMessage(json, &plan, options);
  if (!status.ok()) {
    const std::string message(status.message().data(), status.message().size());
    return absl::InvalidArgumentError(
        absl::StrCat("plan: ", message, LineOf(json, FieldIn(message))));
  }
  if (plan.format_version() != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("plan: field 'format_version' is ", plan.format_version(), ", expected 1"));
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
