#include "serving/tokenizer/tokenizer_files.h"

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/json/json_reader.h"
#include "serving/tokenizer/generation_config.h"
#include "serving/tokenizer/hugging_face_tokenizer.h"

namespace espalier {
namespace {

constexpr size_t kMaxTemplates = 64;

// Reads special tokens, which are strings or objects with "content". Existing entries stay.
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

void ReadAdditional(const JsonReader& json, std::vector<std::string>* tokens) {
  if (!json.Has("additional_special_tokens")) return;
  const JsonReader list = json.Get("additional_special_tokens");
  if (!list.value().is_array()) return list.Invalid("expected a list");
  for (size_t i = 0; i < list.size() && json.ok(); ++i) {
    const JsonReader entry = list.At(i);
    std::string text = entry.IsObject() ? entry.String("content") : entry.AsString();
    if (json.ok()) tokens->push_back(std::move(text));
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

void ReadAdded(const JsonReader& json, TokenizerConfig* config) {
  // Files may hold other types here; then it is none of the classes that matter.
  const auto name = json.value().find("tokenizer_class");
  if (name != json.value().end() && name->is_string())
    config->tokenizer_class = name->get<std::string>();
  if (json.Has("add_bos_token")) config->add_bos_token = json.Bool("add_bos_token");
  if (json.Has("add_eos_token")) config->add_eos_token = json.Bool("add_eos_token");
}

absl::Status ReadInto(const std::string& text, absl::string_view file, bool is_config,
                      TokenizerConfig* config) {
  if (text.empty()) return absl::OkStatus();
  const absl::StatusOr<nlohmann::json> value = ParseJson(text, file);
  if (!value.ok()) return value.status();
  absl::Status status;
  const JsonReader json(*value, absl::StrCat(file, ": "), &status);
  if (!json.IsObject()) json.Invalid("expected an object");
  if (!status.ok()) return status;
  ReadSpecialTokens(json, &config->special_tokens);
  ReadAdditional(json, &config->additional_special_tokens);
  if (!is_config) return status;
  ReadTemplates(json, &config->chat_templates);
  ReadAdded(json, config);
  return status;
}

// As transformers' SentencePiece tokenizer classes do, whatever tokenizer.json says: adds bos
// unless the configuration says otherwise, and eos if it says so.
absl::Status SetPrefixAndSuffix(const TokenizerConfig& config, HuggingFaceTokenizer* tokenizer) {
  const std::string& name = config.tokenizer_class;
  const bool theirs = absl::StartsWith(name, "Llama") || absl::StartsWith(name, "CodeLlama") ||
                      absl::StartsWith(name, "Gemma");
  const bool said = config.add_bos_token.has_value() || config.add_eos_token.has_value();
  if (!theirs || (tokenizer->has_post_processor() && !said)) return absl::OkStatus();
  std::vector<int> before, behind;
  for (const auto& [role, field, add, said_so, tokens] :
       {std::tuple("bos_token", "add_bos_token", config.add_bos_token.value_or(true),
                   config.add_bos_token.has_value(), &before),
        std::tuple("eos_token", "add_eos_token", config.add_eos_token.value_or(false),
                   config.add_eos_token.has_value(), &behind)}) {
    if (!add) continue;
    const auto token = config.special_tokens.find(role);
    if (token != config.special_tokens.end()) {
      tokens->push_back(tokenizer->TokenId(token->second));
    } else if (said_so) {
      return absl::InvalidArgumentError(
          absl::StrCat("tokenizer_config.json: ", field, " is true, but there is no ", role));
    }
  }
  tokenizer->SetPrefixAndSuffix(std::move(before), std::move(behind));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TokenizerConfig> ReadTokenizerConfig(const TokenizerFiles& files) {
  TokenizerConfig config;
  if (!files.chat_template_jinja.empty()) {
    config.chat_templates.emplace("default", files.chat_template_jinja);
  }
  config.chat_templates.insert(files.additional_chat_templates.begin(),
                               files.additional_chat_templates.end());
  absl::Status status =
      ReadInto(files.tokenizer_config_json, "tokenizer_config.json", true, &config);
  if (status.ok()) {
    status = ReadInto(files.special_tokens_map_json, "special_tokens_map.json", false, &config);
  }
  if (!status.ok()) return status;
  return config;
}

absl::StatusOr<std::shared_ptr<const Tokenizer>> LoadTokenizer(
    const TokenizerFiles& files, std::vector<int> model_eos, int64_t vocabulary,
    std::map<int, std::string>* omitted_added_tokens) {
  const absl::StatusOr<TokenizerConfig> config = ReadTokenizerConfig(files);
  if (!config.ok()) return config.status();
  std::vector<int> eos = std::move(model_eos);
  if (!files.generation_config_json.empty()) {
    const absl::StatusOr<GenerationConfig> generation =
        ReadGenerationConfig(files.generation_config_json);
    if (!generation.ok()) return generation.status();
    eos.insert(eos.end(), generation->eos.begin(), generation->eos.end());
  }
  std::vector<std::string> special = config->additional_special_tokens;
  for (const auto& [role, spelling] : config->special_tokens) special.push_back(spelling);
  absl::StatusOr<std::unique_ptr<HuggingFaceTokenizer>> tokenizer =
      HuggingFaceTokenizer::Parse(files.tokenizer_json, std::min(vocabulary, kMaxTokenId), special);
  if (!tokenizer.ok()) return tokenizer.status();
  const std::map<int, std::string>& missing = (*tokenizer)->omitted_added_tokens();
  int bos = -1;
  for (const auto& [role, spelling] : config->special_tokens) {
    const bool ends = role == "eos_token";
    if (!ends && role != "bos_token") continue;
    const int id = (*tokenizer)->TokenId(spelling);
    const auto cut = std::find_if(missing.begin(), missing.end(),
                                  [&text = spelling](const auto& m) { return m.second == text; });
    if (cut != missing.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("tokenizer_config.json: ", role, " is \"", spelling, "\", token ",
                       cut->first, "; config.json has a vocab_size of ", vocabulary));
    }
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
  (*tokenizer)->SetBosAndEos(bos, std::move(eos));
  if (absl::Status status = SetPrefixAndSuffix(*config, tokenizer->get()); !status.ok())
    return status;
  if (omitted_added_tokens != nullptr) *omitted_added_tokens = missing;
  return std::shared_ptr<const Tokenizer>(*std::move(tokenizer));
}

}  // namespace espalier
