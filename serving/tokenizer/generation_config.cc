#include "serving/tokenizer/generation_config.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/json/json_reader.h"
#include "serving/tokenizer/token_model.h"

namespace espalier {
namespace {

constexpr size_t kMaxEos = 256;
constexpr size_t kMaxBadWords = 4096;  // each is checked for every token of an answer

std::optional<int> ReadInt(const JsonReader& json, absl::string_view key, int64_t low,
                           int64_t high) {
  if (!json.Has(key)) return std::nullopt;
  return static_cast<int>(json.Int(key, low, high));
}

// A number in [low, high]; with `above` in (low, high].
std::optional<double> ReadNumber(const JsonReader& json, absl::string_view key, double low,
                                 double high, bool above) {
  if (!json.Has(key)) return std::nullopt;
  const JsonReader field = json.Get(key);
  const double value = field.AsNumber();
  if (json.ok() && (value < low || value > high || (above && value == low))) {
    field.Invalid(absl::StrCat(
        "is ", value, ", expected ", above ? "more than " : "at least ", low,
        high < std::numeric_limits<double>::infinity() ? absl::StrCat(" and at most ", high) : ""));
  }
  return value;
}

// Fields that change answers in transformers but not here, with the value that has no effect.
constexpr struct {
  const char* name;
  double neutral;
} kUnused[] = {{"max_length", 0},
               {"min_length", 0},
               {"forced_bos_token_id", -1},
               {"forced_eos_token_id", -1},
               {"begin_suppress_tokens", 0},
               {"sequence_bias", 0},
               {"no_repeat_ngram_size", 0},
               {"encoder_repetition_penalty", 1},
               {"exponential_decay_length_penalty", 0},
               {"epsilon_cutoff", 0},
               {"eta_cutoff", 0},
               {"top_h", 0},
               {"guidance_scale", 1},
               {"penalty_alpha", 0},
               {"num_beams", 1},
               {"dola_layers", 0},
               {"watermarking_config", 0}};

std::vector<std::string> UnusedIn(const nlohmann::json& file) {
  std::vector<std::string> out;
  for (const auto& [name, neutral] : kUnused) {
    const auto field = file.find(name);
    if (field == file.end() || field->empty() || *field == false) continue;
    if (field->is_number() && field->get<double>() == neutral) continue;
    out.push_back(name);
  }
  return out;
}

void ReadStopStrings(const JsonReader& json, std::vector<std::string>* stops) {
  if (!json.Has("stop_strings")) return;
  const JsonReader field = json.Get("stop_strings");
  if (!field.value().is_array()) {
    stops->push_back(field.AsString());
    return;
  }
  for (size_t i = 0; i < field.size() && json.ok(); ++i) stops->push_back(field.At(i).AsString());
}

// REQUIRES: config->eos is set.
void ReadBadWords(const JsonReader& json, GenerationConfig* config) {
  // outside the vocabulary: never generated
  constexpr int64_t kLow = -kMaxTokenId, kHigh = kMaxTokenId - 1;
  std::vector<std::vector<int>>& words = config->bad_words;
  const auto add = [&](const JsonReader& field, std::vector<int> word) {
    if (words.size() == kMaxBadWords) {
      field.Invalid(absl::StrCat("more than ", kMaxBadWords,
                                 " entries of bad_words_ids and suppress_tokens together"));
    } else if (std::all_of(word.begin(), word.end(), [](int token) { return token >= 0; })) {
      words.push_back(std::move(word));
    }
  };
  if (json.Has("suppress_tokens")) {
    const JsonReader tokens = json.Get("suppress_tokens");
    for (size_t i = 0; i < tokens.size() && json.ok(); ++i) {
      add(tokens, {static_cast<int>(tokens.At(i).AsInt(kLow, kHigh))});
    }
  }
  if (!json.Has("bad_words_ids")) return;
  const JsonReader list = json.Get("bad_words_ids");
  for (size_t i = 0; i < list.size() && json.ok(); ++i) {
    const JsonReader ids = list.At(i);
    std::vector<int> word;
    for (size_t t = 0; t < ids.size() && json.ok(); ++t) {
      word.push_back(static_cast<int>(ids.At(t).AsInt(kLow, kHigh)));
    }
    if (json.ok() && word.empty()) ids.Invalid("has no token");
    // As in transformers: an answer must be able to end.
    const bool ends = word.size() == 1 && std::find(config->eos.begin(), config->eos.end(),
                                                    word[0]) != config->eos.end();
    if (json.ok() && !ends) add(ids, std::move(word));
  }
}

// Defaults for requests. REQUIRES: config->eos is set.
void ReadDefaults(const JsonReader& json, GenerationConfig* config) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (json.Has("do_sample")) config->do_sample = json.Bool("do_sample");
  config->temperature = ReadNumber(json, "temperature", 0, kInfinity, false);
  config->top_p = ReadNumber(json, "top_p", 0, 1, true);
  config->top_k = ReadInt(json, "top_k", 0, INT32_MAX);
  config->min_p = ReadNumber(json, "min_p", 0, 1, false);
  config->typical_p = ReadNumber(json, "typical_p", 0, 1, true);
  config->repetition_penalty = ReadNumber(json, "repetition_penalty", 0, kInfinity, true);
  config->max_new_tokens = ReadInt(json, "max_new_tokens", 1, INT32_MAX);
  config->min_new_tokens = ReadInt(json, "min_new_tokens", 0, INT32_MAX).value_or(0);
  ReadStopStrings(json, &config->stop_strings);
  ReadBadWords(json, config);
}

}  // namespace

absl::StatusOr<GenerationConfig> ReadGenerationConfig(absl::string_view text) {
  const absl::StatusOr<nlohmann::json> value = ParseJson(text, "generation_config.json");
  if (!value.ok()) return value.status();
  absl::Status status;
  const JsonReader json(*value, "generation_config.json: ", &status);
  if (!json.IsObject()) json.Invalid("expected an object");
  GenerationConfig config;
  if (json.Has("eos_token_id")) {
    const JsonReader eos = json.Get("eos_token_id");
    if (eos.value().is_array()) {
      if (eos.size() > kMaxEos) eos.Invalid(absl::StrCat("has more than ", kMaxEos, " ids"));
      for (size_t i = 0; i < eos.size() && json.ok(); ++i) {
        config.eos.push_back(static_cast<int>(eos.At(i).AsInt(0, kMaxTokenId - 1)));
      }
    } else {
      config.eos.push_back(static_cast<int>(eos.AsInt(0, kMaxTokenId - 1)));
    }
  }
  config.bos = ReadInt(json, "bos_token_id", 0, kMaxTokenId - 1);
  // Some old models pad with -1, which is no token.
  config.pad = ReadInt(json, "pad_token_id", -1, kMaxTokenId - 1);
  if (config.pad == -1) config.pad.reset();
  if (!status.ok()) return status;
  GenerationConfig whole = config;
  ReadDefaults(JsonReader(*value, "generation_config.json: ", &config.defaults), &whole);
  if (!config.defaults.ok()) return config;
  whole.unused = UnusedIn(*value);
  return whole;
}

}  // namespace espalier
