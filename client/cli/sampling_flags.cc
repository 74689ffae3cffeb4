#include "client/cli/sampling_flags.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/terminal/text.h"

namespace espalier {
namespace {

// A flag's value that begins with @ names a file with the text, as for curl.
absl::Status TextOrFile(const ParsedFlags& flags, const char* name, std::string* out) {
  const std::string given = flags.Text(name);
  if (given.empty() || given[0] != '@') {
    *out = given;
    return absl::OkStatus();
  }
  absl::StatusOr<std::string> text = ReadFile(given.substr(1));
  if (!text.ok()) return UsageError(absl::StrCat("--", name, ": ", text.status().message()));
  *out = *std::move(text);
  return absl::OkStatus();
}

absl::Status FillBiases(const ParsedFlags& flags, v1::SamplingOptions* sampling) {
  for (const std::string& entry : flags.Values("logit-bias")) {
    const size_t equals = entry.find('=');
    int token = 0;
    float bias = 0;
    if (equals == std::string::npos || !absl::SimpleAtoi(entry.substr(0, equals), &token) ||
        !absl::SimpleAtof(entry.substr(equals + 1), &bias)) {
      return UsageError(absl::StrCat("--logit-bias is \"", Printable(entry),
                                     "\"; accepted: TOKEN=BIAS, as 13=-100"));
    }
    (*sampling->mutable_logit_bias())[token] = bias;
  }
  return absl::OkStatus();
}

absl::Status FillForm(const ParsedFlags& flags, v1::GenerateRequest* request) {
  const int forms = flags.Has("regex") + flags.Has("json-schema") + flags.Has("json-object") +
                    flags.Has("grammar") + flags.Has("choice");
  if (forms == 0) return absl::OkStatus();
  if (forms > 1) {
    return UsageError(
        "an answer has one form: give one of --regex, --json-schema, --json-object, "
        "--grammar and --choice");
  }
  v1::StructuredOutput* out = request->mutable_structured_output();
  if (flags.Has("json-object")) out->set_json_object(true);
  for (const std::string& text : flags.Values("choice")) out->mutable_choice()->add_texts(text);
  if (flags.Has("regex")) return TextOrFile(flags, "regex", out->mutable_regex());
  if (flags.Has("json-schema")) return TextOrFile(flags, "json-schema", out->mutable_json_schema());
  if (flags.Has("grammar")) return TextOrFile(flags, "grammar", out->mutable_grammar());
  return absl::OkStatus();
}

}  // namespace

std::vector<FlagSpec> SamplingFlags() {
  std::vector<FlagSpec> flags = {
      {"temperature", FlagType::kNumber, "T",
       "0 is greedy (the model's, as for the flags below; where it has none 0, and 1 over --http)",
       0, 0, 100},
      {"top-p", FlagType::kNumber, "P",
       "nucleus sampling: smallest set of tokens with this "
       "probability mass (all)",
       0, 0, 1},
      {"top-k", FlagType::kInt, "K", "sample from the K most likely tokens (all)", 0, 0, 1 << 30},
      {"min-p", FlagType::kNumber, "P",
       "minimum probability, relative to the most likely token "
       "(off)",
       0, 0, 1},
      {"typical-p", FlagType::kNumber, "P",
       "locally typical sampling: probability mass of the "
       "most typical tokens (off)",
       0, 0, 1},
      {"repetition-penalty", FlagType::kNumber, "F",
       "penalty for tokens of prompt and answer (1, "
       "off)",
       0, 0.01, 100},
      {"presence-penalty", FlagType::kNumber, "F", "penalty for tokens that are in the answer (0)",
       0, -2, 2},
      {"frequency-penalty", FlagType::kNumber, "F", "penalty per occurrence in the answer (0)", 0,
       -2, 2},
      {"logit-bias", FlagType::kText, "TOKEN=BIAS", "added to a token's logit", 0, 0, 0, true},
      {"bad-word", FlagType::kText, "TEXT", "text that must not occur", 0, 0, 0, true},
      {"seed", FlagType::kInt, "N", "sampling seed", 0, 0},
      {"stop", FlagType::kText, "TEXT", "stop before this text", 0, 0, 0, true},
      {"stop-token", FlagType::kInt, "TOKEN", "stop at this token", 0, 0, 0x7FFFFFFF, true},
      {"min-tokens", FlagType::kInt, "N", "minimum answer length (0)", 0, 0, 1 << 20},
      {"ignore-eos", FlagType::kSwitch, "", "continue after an end-of-sequence token"},
      {"regex", FlagType::kText, "REGEX|@FILE", "the answer must match this regular expression"},
      {"json-schema", FlagType::kText, "SCHEMA|@FILE", "the answer must be JSON of this schema"},
      {"json-object", FlagType::kSwitch, "", "the answer must be a JSON object"},
      {"grammar", FlagType::kText, "GBNF|@FILE", "the answer must follow this grammar"},
      {"choice", FlagType::kText, "TEXT", "the answer must be one of these texts", 0, 0, 0, true},
  };
  for (FlagSpec& flag : QueueFlags()) flags.push_back(std::move(flag));
  return flags;
}

std::vector<FlagSpec> QueueFlags() {
  return {
      {"priority", FlagType::kInt, "N", "requests with lower values run first (0)", 0, -1000000,
       1000000},
      {"cache-salt", FlagType::kText, "TEXT",
       "share the prefix cache only with requests of this "
       "salt"},
      {"timeout", FlagType::kNumber, "SECONDS", "fail after this time (none)", 0, 0, 604800},
  };
}

absl::Status FillSampling(const ParsedFlags& flags, v1::GenerateRequest* request) {
  for (const std::string& stop : flags.Values("stop")) request->add_stop(stop);
  for (const std::string& token : flags.Values("stop-token")) {
    int id = 0;
    if (absl::SimpleAtoi(token, &id)) request->add_stop_token_ids(id);
  }
  request->set_ignore_eos(flags.Has("ignore-eos"));
  FillQueue(flags, request);
  v1::SamplingOptions* sampling = request->mutable_sampling();
  // Flags that are not given leave the model's defaults.
  using S = v1::SamplingOptions;
  const std::pair<const char*, void (S::*)(double)> numbers[] = {
      {"temperature", &S::set_temperature},
      {"top-p", &S::set_top_p},
      {"min-p", &S::set_min_p},
      {"typical-p", &S::set_typical_p},
      {"repetition-penalty", &S::set_repetition_penalty}};
  for (const auto& [name, set] : numbers) {
    if (flags.Has(name)) (sampling->*set)(flags.Number(name, 0));
  }
  if (flags.Has("top-k")) sampling->set_top_k(static_cast<int32_t>(flags.Int("top-k", 0)));
  sampling->set_presence_penalty(flags.Number("presence-penalty", 0));
  sampling->set_frequency_penalty(flags.Number("frequency-penalty", 0));
  if (flags.Has("min-tokens")) {
    sampling->set_min_tokens(static_cast<int32_t>(flags.Int("min-tokens", 0)));
  }
  for (const std::string& word : flags.Values("bad-word")) sampling->add_bad_words(word);
  if (flags.Has("seed")) {
    sampling->set_seed(static_cast<uint64_t>(flags.Int("seed", 0)));
    sampling->set_has_seed(true);
  }
  absl::Status status = FillBiases(flags, sampling);
  if (status.ok()) status = FillForm(flags, request);
  return status;
}

}  // namespace espalier
