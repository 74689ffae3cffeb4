#include "serving/tokenizer/tokenizer_files.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "serving/tokenizer/generation_config.h"
#include "serving/tokenizer/json_reader.h"
#include "serving/tokenizer/pipeline_tokenizer.h"

namespace espalier {
namespace {

constexpr size_t kMaxTemplates = 64;

// Spellings of special tokens, which are strings or objects with their content. What is already
// there stays.
void ReadSpecialTokens(const JsonReader& json, std::map<std::string, std::string>* tokens) {
  static constexpr const char* kRoles[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                           "pad_token", "cls_token", "mask_token"};
  for (const char* const role : kRoles) {
    if (!json.Has(role)) continue;
    const JsonReader field = json.Get(role);
    std::string text = field.IsObject() ? field.String("content") : field.AsString();
    if (json.ok()) tokens->emplace(role, std::move(text));
  }
}

void ReadTemplates(const JsonReader& json, std::map<std::string, std::string>* templates) {
  if (!json.Has("chat_template")) return;
  const JsonReader field = json.Get("chat_template");
  if (!field.value().is_array()) {
    templates->emplace("default", field.AsString());
    return;
  }
  if (field.size() > kMaxTemplates)
    field.Invalid(absl::StrCat("has more than ", kMaxTemplates, " templates"));
  for (size_t i = 0; i < field.size() && json.ok(); ++i) {
    const JsonReader entry = field.At(i);
    templates->emplace(entry.String("name"), entry.String("template"));
  }
}

absl::Status ReadInto(const std::string& text, absl::string_view file, bool templates,
                      TokenizerConfig* config) {
  if (text.empty()) return absl::OkStatus();
  const absl::StatusOr<nlohmann::json> value = ParseJson(text, file);
  if (!value.ok()) return value.status();
  absl::Status status;
  const JsonReader json(*value, absl::StrCat(file, ": "), &status);
  if (!json.IsObject()) json.Invalid("expected an object");
  ReadSpecialTokens(json, &config->special_tokens);
  if (templates) ReadTemplates(json, &config->chat_templates);
  return status;
}

}  // namespace

absl::StatusOr<TokenizerConfig> ReadTokenizerConfig(const TokenizerFiles& files) {
  TokenizerConfig config;
  if (!files.chat_template_jinja.empty()) {
    config.chat_templates.emplace("default", files.chat_template_jinja);
  }
  absl::Status status =
      ReadInto(files.tokenizer_config_json, "tokenizer_config.json", true, &config);
  if (status.ok()) {
    status = ReadInto(files.special_tokens_map_json, "special_tokens_map.json", false, &config);
  }
  if (!status.ok()) return status;
  return config;
}

absl::StatusOr<std::shared_ptr<const Tokenizer>> LoadTokenizer(const TokenizerFiles& files,
                                                               std::vector<int> model_eos) {
  const absl::StatusOr<TokenizerConfig> config = ReadTokenizerConfig(files);
  if (!config.ok()) return config.status();
  std::vector<int> eos = std::move(model_eos);
  if (!files.generation_config_json.empty()) {
    const absl::StatusOr<GenerationConfig> generation =
        ReadGenerationConfig(files.generation_config_json);
    if (!generation.ok()) return generation.status();
    eos.insert(eos.end(), generation->eos.begin(), generation->eos.end());
  }
  absl::StatusOr<std::unique_ptr<PipelineTokenizer>> tokenizer =
      PipelineTokenizer::Parse(files.tokenizer_json);
  if (!tokenizer.ok()) return tokenizer.status();
  int bos = -1;
  for (const auto& [role, spelling] : config->special_tokens) {
    const bool ends = role == "eos_token";
    if (!ends && role != "bos_token") continue;
    const int id = (*tokenizer)->TokenId(spelling);
    if (id < 0) {
      return absl::InvalidArgumentError(absl::StrCat("tokenizer_config.json: ", role, " is \"",
                                                     spelling,
                                                     "\", which tokenizer.json does not have"));
    }
    if (ends) {
      eos.push_back(id);
    } else {
      bos = id;
    }
  }
  std::sort(eos.begin(), eos.end());
  eos.erase(std::unique(eos.begin(), eos.end()), eos.end());
  for (const int id : eos) {
    if (id < 0 || id >= (*tokenizer)->vocabulary()) {
      return absl::InvalidArgumentError(absl::StrCat("eos_token_id ", id,
                                                     " is outside the tokenizer's vocabulary of ",
                                                     (*tokenizer)->vocabulary(), " tokens"));
    }
  }
  (*tokenizer)->SetEnds(bos, std::move(eos));
  return std::shared_ptr<const Tokenizer>(*std::move(tokenizer));
}

}  // namespace espalier
