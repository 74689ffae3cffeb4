#include "server/inference/requests/schema_warnings.h"

#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/json/bounded_json.h"
#include "serving/grammar/json_schema.h"

namespace espalier {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMostWarnings = 20;
constexpr size_t kMostHeaderBytes = 1000;

class Warnings {
 public:
  void Add(const std::string& what, const std::string& schema) {
    if (texts_.size() >= kMostWarnings) return;
    for (const std::string& text : UnenforcedKeywords(schema)) {
      if (texts_.size() < kMostWarnings) texts_.push_back(absl::StrCat(what, ": ", text));
    }
  }

  // xgrammar's tree of formats has schemas anywhere.
  void AddFormats(const Json& tree) {
    if (tree.is_object() && tree.value("type", Json()) == "json_schema") {
      Add("structural_tag",
          tree.value("json_schema", Json()).dump(-1, ' ', false, Json::error_handler_t::replace));
      return;
    }
    if (!tree.is_structured()) return;
    for (const Json& part : tree) AddFormats(part);
  }

  std::vector<std::string> Take() { return std::move(texts_); }

 private:
  std::vector<std::string> texts_;
};

void AddTools(const v1::ChatPrompt& chat, Warnings* warnings) {
  if (chat.tool_choice() != v1::TOOL_CHOICE_REQUIRED &&
      chat.tool_choice() != v1::TOOL_CHOICE_NAMED) {
    return;
  }
  for (const std::string& text : chat.tools()) {
    const Json tool = ParseBoundedJson<Json>(text, kRequestJson).value_or(Json());
    const Json function = tool.is_object() ? tool.value("function", Json()) : Json();
    if (!function.is_object()) continue;
    const Json name = function.value("name", Json());
    if (!name.is_string() ||
        (chat.tool_choice() == v1::TOOL_CHOICE_NAMED && name != chat.named_tool())) {
      continue;
    }
    warnings->Add(
        absl::StrCat("tool ", name.get<std::string>().substr(0, 60)),
        function.value("parameters", Json()).dump(-1, ' ', false, Json::error_handler_t::replace));
  }
}

}  // namespace

std::vector<std::string> SchemaWarnings(const v1::GenerateRequest& request) {
  Warnings warnings;
  const v1::StructuredOutput& output = request.structured_output();
  if (output.has_json_schema()) warnings.Add("json_schema", output.json_schema());
  for (const auto& structure : output.structural_tag().structures()) {
    warnings.Add("structural_tag", structure.json_schema());
  }
  if (!output.structural_tag().format().empty()) {
    warnings.AddFormats(
        ParseBoundedJson<Json>(output.structural_tag().format(), kRequestJson).value_or(Json()));
  }
  AddTools(request.chat(), &warnings);
  return warnings.Take();
}

std::string WarningHeader(const std::vector<std::string>& warnings) {
  std::string value = absl::StrJoin(warnings, "; ");
  for (char& c : value) {
    if (!absl::ascii_isprint(static_cast<unsigned char>(c))) c = '?';
  }
  if (value.size() > kMostHeaderBytes) value = absl::StrCat(value.substr(0, 990), "...");
  return value;
}

}  // namespace espalier
