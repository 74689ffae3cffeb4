#include "server/http/openai_request.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/http/json_reader.h"
#include "server/http/openai_chat.h"
#include "server/http/text_reader.h"

namespace espalier::openai {
namespace {

using json = nlohmann::ordered_json;

constexpr int kMaxTokensLimit = 1 << 20;
constexpr size_t kMaxStructures = 1024;
constexpr int kDefaultTimeoutLimit = 7 * 24 * 3600;

bool IsOff(const json& value) {
  return value == false || value == 0 || value == "" || value.empty();
}

void ReadStop(JsonReader& reader, proto::GenerateRequest* generate) {
  const json* stop = reader.Find("stop");
  if (stop == nullptr) return;
  if (stop->is_string()) {
    generate->add_stop(stop->get<std::string>());
    return;
  }
  reader.Strings("stop", 64, [&](const std::string& text) { generate->add_stop(text); });
}

void ReadStreamOptions(JsonReader& reader, Request* request) {
  reader.Bool("stream", &request->stream);
  const json* options = reader.Find("stream_options");
  if (options == nullptr) return;
  if (!options->is_object() || !request->stream) {
    reader.Fail("stream_options",
                "field 'stream_options' must be an object and goes with 'stream': true");
    return;
  }
  JsonReader inner(*options, "stream_options.");
  inner.Bool("include_usage", &request->include_usage);
  inner.Unsupported("include_obfuscation", IsOff);
  inner.Unsupported("continuous_usage_stats", IsOff);
  inner.RefuseUnknown();
  if (inner.error()) reader.Fail("stream_options", inner.error()->message);
}

void ReadLogitBias(JsonReader& reader, proto::SamplingOptions* sampling) {
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

void ReadSampling(JsonReader& reader, proto::GenerateRequest* generate) {
  proto::SamplingOptions* sampling = generate->mutable_sampling();
  // What is not there stays absent: the model may have a default of its own.
  const auto number = [&](const char* name, double low, double high, auto set) {
    if (reader.Find(name) == nullptr) return;
    double value = low;
    reader.Number(name, low, high, &value);
    (sampling->*set)(value);
  };
  using S = proto::SamplingOptions;
  number("temperature", 0, 2, &S::set_temperature);
  number("top_p", 0, 1, &S::set_top_p);
  if (sampling->has_top_p() && sampling->top_p() == 0) {
    reader.Fail("top_p", "field 'top_p' must be greater than 0");
  }
  number("min_p", 0, 1, &S::set_min_p);
  number("typical_p", 0, 1, &S::set_typical_p);
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
    sampling->set_seed(static_cast<uint64_t>(seed));
    sampling->set_has_seed(true);
  }
  ReadLogitBias(reader, sampling);
  reader.Tokens("allowed_token_ids", kMaxPromptTokens,
                [&](int token) { sampling->add_allowed_token_ids(token); });
  reader.Strings("bad_words", 256, [&](const std::string& word) { sampling->add_bad_words(word); });
  int min_tokens = 0;
  reader.Integer("min_tokens", 0, kMaxTokensLimit, &min_tokens);
  sampling->set_min_tokens(min_tokens);
}

// How the answer ends and what comes with it.
void ReadAnswer(JsonReader& reader, proto::GenerateRequest* generate) {
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
  generate->set_no_added_tokens(!add_special);
  int value = 0;
  if (reader.Find("prompt_logprobs") != nullptr) {
    reader.Integer("prompt_logprobs", 0, 64, &value);
    generate->set_prompt_logprobs(value);
  }
  value = 0;
  reader.Integer("truncate_prompt_tokens", 1, kMaxTokensLimit, &value);
  generate->set_truncate_prompt_tokens(value);
  value = 1;
  reader.Integer("n", 1, 128, &value);
  generate->set_n(value);
  value = 0;
  reader.Integer("priority", std::numeric_limits<int>::min(), std::numeric_limits<int>::max(),
                 &value);
  generate->set_priority(value);
  if (reader.Find("cache_salt") != nullptr) {
    reader.String("cache_salt", true, generate->mutable_cache_salt());
    if (generate->cache_salt().empty()) {
      // Whoever sends one wants to be apart.
      reader.Fail("cache_salt", "field 'cache_salt' is empty; leave it out to share with all");
    }
  }
  double timeout = 0;
  reader.Number("timeout", 0, kDefaultTimeoutLimit, &timeout);
  generate->set_timeout_seconds(timeout);
  if (reader.Find("speculation") != nullptr) {
    bool on = true;
    reader.Bool("speculation", &on);
    generate->set_speculation(on ? proto::SPECULATION_ON : proto::SPECULATION_OFF);
  }
}

std::string SchemaText(const json& schema) {
  return schema.is_string() ? schema.get<std::string>() : Dump(schema);
}

// As vLLM and SGLang have it: {"structures": [{"begin", "schema", "end"}], "triggers": [...]}.
void ReadStructuralTag(JsonReader& reader, proto::StructuralTag* tag) {
  const json* structures = reader.Find("structures");
  if (structures == nullptr || !structures->is_array() || structures->empty() ||
      structures->size() > kMaxStructures) {
    reader.Fail("structures", "field 'response_format.structures' must be a list of 1 to 1024");
    return;
  }
  for (size_t i = 0; i < structures->size(); ++i) {
    const std::string place = absl::StrCat("response_format.structures[", i, "]");
    if (!(*structures)[i].is_object()) {
      reader.Fail("structures", absl::StrCat(place, " must be an object"));
      return;
    }
    JsonReader inner((*structures)[i], place + ".");
    proto::StructuralTag::Structure* out = tag->add_structures();
    inner.String("begin", true, out->mutable_begin());
    inner.String("end", true, out->mutable_end());
    if (const json* schema = inner.Find("schema")) {
      out->set_json_schema(Dump(*schema));
    } else {
      inner.Fail("schema", absl::StrCat(place, " must have a 'schema'"));
    }
    inner.RefuseUnknown();
    if (inner.error()) reader.Fail(inner.error()->param, inner.error()->message);
  }
  reader.Strings("triggers", kMaxStructures,
                 [&](const std::string& trigger) { tag->add_triggers(trigger); });
}

// How many forms it demands.
int ReadResponseFormat(const json& format, JsonReader& reader, proto::GenerateRequest* generate) {
  if (!format.is_object()) {
    reader.Fail("response_format", "field 'response_format' must be an object");
    return 0;
  }
  JsonReader inner(format, "response_format.");
  std::string type;
  inner.String("type", true, &type);
  if (type == "json_object") {
    generate->mutable_structured_output()->set_json_object(true);
  } else if (type == "json_schema") {
    const json* wrapped = inner.Find("json_schema");
    const bool good = wrapped != nullptr && wrapped->is_object() && wrapped->contains("schema");
    if (good) {
      JsonReader deeper(*wrapped, "response_format.json_schema.");
      deeper.Ignore({"name", "description", "strict", "schema"});
      deeper.RefuseUnknown();
      if (deeper.error()) reader.Fail(deeper.error()->param, deeper.error()->message);
      generate->mutable_structured_output()->set_json_schema(SchemaText((*wrapped)["schema"]));
    } else {
      inner.Fail("json_schema",
                 "field 'response_format.json_schema' must be an object with a 'schema'");
    }
  } else if (type == "structural_tag") {
    ReadStructuralTag(inner, generate->mutable_structured_output()->mutable_structural_tag());
  } else if (type != "text") {
    inner.Fail("type",
               "field 'response_format.type' must be text, json_object, json_schema or "
               "structural_tag");
  }
  inner.RefuseUnknown();
  if (inner.error()) reader.Fail(inner.error()->param, inner.error()->message);
  return type == "text" ? 0 : 1;
}

// vLLM's structured_outputs, its older guided_... fields, and OpenAI's response_format.
void ReadStructured(JsonReader& reader, proto::GenerateRequest* generate) {
  int given = 0;
  const auto read = [&](JsonReader& from, const std::string& prefix) {
    const auto out = [&] {
      ++given;
      return generate->mutable_structured_output();
    };
    if (const json* schema = from.Find(prefix + "json"))
      out()->set_json_schema(SchemaText(*schema));
    for (const char* name : {"regex", "grammar"}) {
      if (from.Find(prefix + name) == nullptr) continue;
      std::string text;
      from.String(prefix + name, true, &text);
      if (*name == 'r') {
        out()->set_regex(text);
      } else {
        out()->set_grammar(text);
      }
    }
    if (from.Find(prefix + "choice") != nullptr) {
      proto::ChoiceList* list = out()->mutable_choice();
      from.Strings(prefix + "choice", 10'000,
                   [&](const std::string& text) { list->add_texts(text); });
    }
  };
  read(reader, "guided_");
  if (const json* outputs = reader.Find("structured_outputs")) {
    if (!outputs->is_object()) {
      reader.Fail("structured_outputs", "field 'structured_outputs' must be an object");
      return;
    }
    JsonReader inner(*outputs, "structured_outputs.");
    read(inner, "");
    if (const json* tag = inner.Find("structural_tag")) {
      // vLLM has it as a text that holds the JSON.
      json parsed = tag->is_string() ? json() : *tag;
      const bool good =
          !tag->is_string() || !JsonReader::ParseBody(tag->get<std::string>(), &parsed);
      if (good && parsed.is_object() && parsed.value("type", json()) == "structural_tag") {
        given += ReadResponseFormat(parsed, inner, generate);
      } else {
        inner.Fail("structural_tag",
                   "field 'structured_outputs.structural_tag' must be an object of that type");
      }
    }
    bool any_object = false;
    inner.Bool("json_object", &any_object);
    if (any_object) {
      ++given;
      generate->mutable_structured_output()->set_json_object(true);
    }
    inner.RefuseUnknown();
    if (inner.error()) reader.Fail(inner.error()->param, inner.error()->message);
  }
  if (const json* format = reader.Find("response_format")) {
    given += ReadResponseFormat(*format, reader, generate);
  }
  if (given > 1) {
    reader.Fail("response_format",
                "only one of response_format, structured_outputs and guided_... can hold, and only "
                "one form of it");
  }
}

void ReadCompletion(JsonReader& reader, Request* request) {
  proto::GenerateRequest& generate = request->generate;
  ReadTexts(reader, "prompt", kMaxPrompts, [&] { return &request->prompts.emplace_back(); });
  bool echo = false;
  reader.Bool("echo", &echo);
  generate.set_echo(echo);
  int value = 0;
  // Without an answer there is only an echo to return.
  reader.Integer("max_tokens", echo ? 0 : 1, kMaxTokensLimit, &value);
  generate.set_max_tokens(value);
  generate.set_prompt_only(echo && reader.Find("max_tokens") != nullptr && value == 0);
  if (reader.Find("logprobs") != nullptr) {
    value = 0;
    reader.Integer("logprobs", 0, 64, &value);
    generate.set_logprobs(value);
  }
  value = 0;
  reader.Integer("best_of", 1, 128, &value);
  if (value > 0 && value < generate.n()) {
    reader.Fail("best_of", "field 'best_of' must be at least 'n'");
  }
  if (value > generate.n() && request->stream) {
    reader.Fail("best_of", "field 'best_of': answers that compete cannot be streamed");
  }
  generate.set_best_of(value);
  reader.Unsupported("suffix", IsOff);
  if (static_cast<int64_t>(request->prompts.size()) * std::max(generate.n(), value) > 1024) {
    reader.Fail("n", "prompts times n must be at most 1024");
  }
}

void ReadChat(JsonReader& reader, Request* request) {
  proto::GenerateRequest& generate = request->generate;
  ReadMessages(reader, generate.mutable_chat());
  ReadTools(reader, generate.mutable_chat());
  ReadReasoning(reader, request);
  int value = 0;
  reader.Integer("max_tokens", 1, kMaxTokensLimit, &value);
  reader.Integer("max_completion_tokens", 1, kMaxTokensLimit, &value);
  generate.set_max_tokens(value);
  bool logprobs = false;
  reader.Bool("logprobs", &logprobs);
  value = 0;
  reader.Integer("top_logprobs", 0, 64, &value);
  if (value > 0 && !logprobs) {
    reader.Fail("top_logprobs", "field 'top_logprobs' goes with 'logprobs': true");
  }
  if (logprobs) generate.set_logprobs(value);
  bool go_on = false;
  reader.Bool("continue_final_message", &go_on);
  generate.mutable_chat()->set_continue_final_message(go_on);
  // Either the assistant begins a turn or it goes on with one.
  reader.Unsupported("add_generation_prompt", [&](const json& v) { return v == !go_on; });
  if (const json* arguments = reader.Find("chat_template_kwargs")) {
    if (!arguments->is_object()) {
      reader.Fail("chat_template_kwargs", "field 'chat_template_kwargs' must be an object");
    } else if (!arguments->empty()) {
      generate.mutable_chat()->set_template_arguments(Dump(*arguments));
    }
  }
  for (const char* name : {"chat_template", "functions", "function_call", "audio", "prediction",
                           "web_search_options"}) {
    reader.Unsupported(name, IsOff);
  }
  reader.Unsupported("modalities", [](const json& v) { return v == json::array({"text"}); });
}

}  // namespace

std::optional<Error> Parse(Kind kind, const std::string& body, Request* request) {
  json parsed;
  if (auto error = JsonReader::ParseBody(body, &parsed)) return error;
  JsonReader reader(parsed);
  proto::GenerateRequest& generate = request->generate;
  reader.String("model", true, generate.mutable_model());
  ReadStreamOptions(reader, request);
  ReadSampling(reader, &generate);
  ReadAnswer(reader, &generate);
  ReadStructured(reader, &generate);
  if (kind == Kind::kCompletion) {
    ReadCompletion(reader, request);
  } else {
    ReadChat(reader, request);
  }
  reader.Bool("return_token_ids", &request->return_token_ids);
  generate.set_return_prompt_tokens(request->return_token_ids);
  for (const char* name : {"use_beam_search", "length_penalty"}) {
    reader.Unsupported(name, IsOff);
  }
  // Labels that do not change the answer.
  reader.Ignore({"user", "metadata", "store", "request_id", "service_tier", "safety_identifier",
                 "prompt_cache_key", "spaces_between_special_tokens"});
  reader.RefuseUnknown();
  return reader.error();
}

std::optional<Error> ParseTokenize(const std::string& body, TokenizeRequest* request) {
  json parsed;
  if (auto error = JsonReader::ParseBody(body, &parsed)) return error;
  JsonReader reader(parsed);
  reader.String("model", false, &request->model);
  bool add_special = true;
  reader.Bool("add_special_tokens", &add_special);
  request->generate.set_no_added_tokens(!add_special);
  reader.Bool("return_token_strs", &request->token_strings);
  if (reader.Find("messages") != nullptr) {
    ReadMessages(reader, request->generate.mutable_chat());
    reader.Unsupported("add_generation_prompt", [](const json& v) { return v == true; });
  } else {
    reader.String("prompt", true, request->generate.mutable_text());
  }
  reader.RefuseUnknown();
  return reader.error();
}

std::optional<Error> ParseDetokenize(const std::string& body, TokenizeRequest* request) {
  json parsed;
  if (auto error = JsonReader::ParseBody(body, &parsed)) return error;
  JsonReader reader(parsed);
  reader.String("model", false, &request->model);
  if (reader.Find("tokens") == nullptr) reader.Fail("tokens", "field 'tokens' is missing");
  reader.Tokens("tokens", kMaxPromptTokens, [&](int token) { request->tokens.push_back(token); });
  reader.RefuseUnknown();
  return reader.error();
}

}  // namespace espalier::openai
