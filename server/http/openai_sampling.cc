#include "server/http/openai_sampling.h"

#include <algorithm>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/http/text_or_tokens_reader.h"

namespace espalier::openai {
namespace {

using json = nlohmann::ordered_json;

constexpr int kTimeoutLimit = 7 * 24 * 3600;
constexpr size_t kMaxRequestIdBytes = 128;

void ReadStop(JsonReader& reader, v1::GenerateRequest* generate) {
  const json* stop = reader.Find("stop");
  if (stop == nullptr) return;
  if (stop->is_string()) {
    generate->add_stop(stop->get<std::string>());
    return;
  }
  reader.Strings("stop", 64, [&](const std::string& text) { generate->add_stop(text); });
}

void ReadLogitBias(JsonReader& reader, v1::SamplingOptions* sampling) {
  const json* bias = reader.Find("logit_bias");
  if (bias == nullptr) return;
  if (!bias->is_object()) {
    reader.Fail("logit_bias", "field 'logit_bias' must be an object of token ids to biases");
    return;
  }
  for (const auto& [key, value] : bias->items()) {
    int token = 0;
    const double number = value.is_number() ? value.get<double>() : 1e9;
    if (!absl::SimpleAtoi(key, &token) || token < 0 || !(number >= -100 && number <= 100)) {
      reader.Fail("logit_bias", absl::StrCat("field 'logit_bias': entry '", key.substr(0, 40),
                                             "' must be a token id with a bias in -100..100"));
      return;
    }
    (*sampling->mutable_logit_bias())[token] = static_cast<float>(number);
  }
}

}  // namespace

void ReadSampling(JsonReader& reader, v1::GenerateRequest* generate) {
  v1::SamplingOptions* sampling = generate->mutable_sampling();
  // Absent fields stay absent: the model may have its own defaults.
  const auto number = [&](const char* name, double low, double high, auto set) {
    if (reader.Find(name) == nullptr) return;
    double value = low;
    reader.Number(name, low, high, &value);
    (sampling->*set)(value);
  };
  using S = v1::SamplingOptions;
  number("temperature", 0, 2, &S::set_temperature);
  number("top_p", 0, 1, &S::set_top_p);
  if (sampling->has_top_p() && sampling->top_p() == 0) {
    reader.Fail("top_p", "field 'top_p' must be greater than 0");
  }
  number("min_p", 0, 1, &S::set_min_p);
  number("typical_p", 0, 1, &S::set_typical_p);
  if (sampling->has_typical_p() && sampling->typical_p() == 0) {
    reader.Fail("typical_p", "field 'typical_p' must be greater than 0");
  }
  number("repetition_penalty", 0.01, 100, &S::set_repetition_penalty);
  number("presence_penalty", -2, 2, &S::set_presence_penalty);
  number("frequency_penalty", -2, 2, &S::set_frequency_penalty);
  if (reader.Find("top_k") != nullptr) {
    int top_k = 0;
    reader.Integer("top_k", -1, 1 << 30, &top_k);
    sampling->set_top_k(top_k < 0 ? 0 : top_k);  // -1 is vLLM's "off"
  }
  if (reader.Find("seed") != nullptr) {
    int64_t seed = 0;
    reader.Integer("seed", std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max(),
                   &seed);
    // -1 means a random seed in vLLM and llama.cpp.
    sampling->set_seed(seed == -1 ? 0 : static_cast<uint64_t>(seed));
    sampling->set_has_seed(seed != -1);
  }
  ReadLogitBias(reader, sampling);
  const json* allowed = reader.Find("allowed_token_ids");
  if (allowed != nullptr && allowed->is_array() && allowed->empty()) {
    // The engine would read an empty list as all tokens.
    reader.Fail("allowed_token_ids",
                "field 'allowed_token_ids' is empty, so that no token could be answered; leave it "
                "out to allow all");
  }
  reader.Tokens("allowed_token_ids", kMaxPromptTokens,
                [&](int token) { sampling->add_allowed_token_ids(token); });
  reader.Strings("bad_words", 256, [&](const std::string& word) { sampling->add_bad_words(word); });
  if (reader.Find("min_tokens") != nullptr) {
    int min_tokens = 0;
    reader.Integer("min_tokens", 0, kMaxTokensLimit, &min_tokens);
    sampling->set_min_tokens(min_tokens);
  }
}

void ReadOutputOptions(JsonReader& reader, v1::GenerateRequest* generate) {
  ReadStop(reader, generate);
  reader.Tokens("stop_token_ids", 1024, [&](int token) { generate->add_stop_token_ids(token); });
  bool include_stop = false, ignore_eos = false, skip_special = true, add_special = true;
  reader.Bool("include_stop_str_in_output", &include_stop);
  reader.Bool("ignore_eos", &ignore_eos);
  reader.Bool("skip_special_tokens", &skip_special);
  reader.Bool("add_special_tokens", &add_special);
  generate->set_include_stop(include_stop);
  generate->set_ignore_eos(ignore_eos);
  generate->set_show_special_tokens(!skip_special);
  generate->set_no_special_tokens(!add_special);
  int value = 0;
  if (reader.Find("prompt_logprobs") != nullptr) {
    reader.Integer("prompt_logprobs", 0, 64, &value);
    generate->set_prompt_logprobs(value);
  }
  value = 0;
  ReadTruncation(reader, &value);
  generate->set_truncate_prompt_tokens(value);
  value = 1;
  reader.Integer("n", 1, 128, &value);
  generate->set_n(value);
  SchedulingFields queueing = ReadSchedulingFields(reader);
  generate->set_priority(queueing.priority);
  generate->set_cache_salt(std::move(queueing.cache_salt));
  generate->set_timeout_seconds(queueing.timeout_seconds);
  if (reader.Find("speculation") != nullptr) {
    bool on = true;
    reader.Bool("speculation", &on);
    generate->set_speculation(on ? v1::SPECULATION_ON : v1::SPECULATION_OFF);
  }
}

SchedulingFields ReadSchedulingFields(JsonReader& reader) {
  SchedulingFields out;
  reader.Integer("priority", std::numeric_limits<int>::min(), std::numeric_limits<int>::max(),
                 &out.priority);
  if (reader.Find("cache_salt") != nullptr) {
    reader.String("cache_salt", true, &out.cache_salt);
    if (out.cache_salt.empty()) {
      // A client that sends a salt wants isolation.
      reader.Fail("cache_salt", "field 'cache_salt' is empty; leave it out to share with all");
    }
  }
  reader.Number("timeout", 0, kTimeoutLimit, &out.timeout_seconds);
  return out;
}

void ReadTruncation(JsonReader& reader, int* most) {
  reader.Integer("truncate_prompt_tokens", -1, kMaxTokensLimit, most);
  if (*most == 0 && reader.Find("truncate_prompt_tokens") != nullptr) {
    reader.Fail(
        "truncate_prompt_tokens",
        "field 'truncate_prompt_tokens' must be 1 or more, or -1 for what there is room for");
  }
}

bool IsRequestId(absl::string_view id) {
  return !id.empty() && id.size() <= kMaxRequestIdBytes &&
         std::all_of(id.begin(), id.end(), [](char c) {
           return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
                  absl::StrContains("-_.:", c);
         });
}

void ReadRequestId(JsonReader& reader, std::string* id) {
  if (reader.Find("request_id") == nullptr) return;
  reader.String("request_id", true, id);
  if (!IsRequestId(*id)) {
    reader.Fail("request_id", absl::StrCat("field 'request_id' must have 1 to ", kMaxRequestIdBytes,
                                           " letters, digits and characters of -_.:"));
  }
}

void ReadServiceTier(JsonReader& reader, std::string* out) {
  if (reader.Find("service_tier") == nullptr) return;
  std::string tier;
  reader.String("service_tier", true, &tier);
  if (tier != "auto" && tier != "default") {
    reader.Fail("service_tier",
                "field 'service_tier' must be auto or default: all requests are served alike; "
                "'priority' puts one before others");
  }
  *out = "default";
}

void ReadStream(JsonReader& reader, bool* stream,
                const std::function<void(JsonReader& options)>& read) {
  reader.Bool("stream", stream);
  const json* options = reader.Find("stream_options");
  if (options == nullptr) return;
  if (!options->is_object() || !*stream) {
    reader.Fail("stream_options",
                "field 'stream_options' must be an object and goes with 'stream': true");
    return;
  }
  JsonReader inner(*options, "stream_options.");
  // Padding against traffic analysis of encrypted packets.
  inner.Unsupported("include_obfuscation", IsOff);
  if (read) read(inner);
  inner.RefuseUnknown();
  if (inner.error()) reader.Fail("stream_options", inner.error()->message);
}

}  // namespace espalier::openai
