#include "client/cli/bench/dataset.h"

#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/cli/flags.h"
#include "client/terminal/text.h"

namespace espalier {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMostOutputTokens = 1 << 20;

// Appends the record's prompt. Returns false if it is in neither format.
bool AddRecord(const Json& record, std::vector<DatasetPrompt>* out) {
  if (!record.is_object()) return false;
  DatasetPrompt prompt;
  if (const auto talk = record.find("conversations"); talk != record.end()) {
    if (!talk->is_array()) return false;
    if (talk->size() < 2) return true;
    const Json& first = (*talk)[0];
    if (!first.is_object() || !first.contains("value") || !first["value"].is_string()) return false;
    prompt.text = first["value"].get<std::string>();
  } else {
    if (!record.contains("prompt") || !record["prompt"].is_string()) return false;
    prompt.text = record["prompt"].get<std::string>();
    if (const auto tokens = record.find("output_tokens");
        tokens != record.end() && !tokens->is_null()) {
      if (!tokens->is_number_integer()) return false;
      prompt.output_tokens = tokens->get<int64_t>();
      if (prompt.output_tokens < 1 || prompt.output_tokens > kMostOutputTokens) return false;
    }
  }
  if (prompt.text.empty()) return false;
  out->push_back(std::move(prompt));
  return true;
}

absl::Status Refused(const std::string& path, absl::string_view what, size_t number) {
  return UsageError(
      absl::StrCat(Printable(path), ", ", what, " ", number,
                   ": expected {\"prompt\": TEXT}, with \"output_tokens\" from 1 on or without, or "
                   "{\"conversations\": [{\"from\": \"human\", \"value\": TEXT}, ...]}"));
}

}  // namespace

absl::StatusOr<std::vector<DatasetPrompt>> ReadDataset(const std::string& path, uint64_t seed) {
  const absl::StatusOr<std::string> text = ReadNonemptyFile(path);
  if (!text.ok()) return text.status();
  std::vector<DatasetPrompt> prompts;
  if (absl::StripLeadingAsciiWhitespace(*text).substr(0, 1) == "[") {
    const Json records = Json::parse(*text, nullptr, false);
    if (!records.is_array()) return UsageError(absl::StrCat(Printable(path), " is no JSON"));
    for (size_t i = 0; i < records.size(); ++i) {
      if (!AddRecord(records[i], &prompts)) return Refused(path, "record", i + 1);
    }
  } else {
    size_t number = 0;
    for (const absl::string_view line : absl::StrSplit(*text, '\n')) {
      ++number;
      if (absl::StripAsciiWhitespace(line).empty()) continue;
      if (!AddRecord(Json::parse(line.begin(), line.end(), nullptr, false), &prompts)) {
        return Refused(path, "line", number);
      }
    }
  }
  if (prompts.empty()) {
    return UsageError(absl::StrCat(Printable(path), " has no prompt (conversations of fewer than ",
                                   "two turns are left out)"));
  }
  std::mt19937_64 random(seed);
  for (size_t i = prompts.size(); i > 1; --i) std::swap(prompts[i - 1], prompts[random() % i]);
  return prompts;
}

}  // namespace espalier
