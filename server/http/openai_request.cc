#include "server/http/openai.h"

#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/str_cat.h"

namespace espalier::openai {
namespace {

using nlohmann::json;

constexpr int kMaxTokensLimit = 1 << 20;
constexpr size_t kMaxMessages = 4096;

// Text of ours on the wire: bytes that are no UTF-8 become U+FFFD instead of an exception.
std::string Dump(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

// Reads the fields of one body. The first error sticks.
class Reader {
 public:
  explicit Reader(const json& body) : body_(body) {}

  const std::optional<Error>& error() const { return error_; }

  void Fail(const std::string& param, const std::string& message) {
    if (!error_) error_ = Error{.message = message, .param = param};
  }

  const json* Find(const std::string& name) {
    seen_.insert(name);
    auto it = body_.find(name);
    return it == body_.end() || it->is_null() ? nullptr : &*it;
  }

  void String(const std::string& name, bool required, std::string* out) {
    const json* value = Find(name);
    if (value == nullptr) {
      if (required) Fail(name, absl::StrCat("field '", name, "' is missing"));
    } else if (!value->is_string()) {
      Fail(name, absl::StrCat("field '", name, "' must be a string, found ", value->type_name()));
    } else {
      *out = value->get<std::string>();
    }
  }

  void Number(const std::string& name, double low, double high, double* out) {
    const json* value = Find(name);
    if (value == nullptr) return;
    const double number = value->is_number() ? value->get<double>() : low - 1;
    if (!(number >= low && number <= high)) {
      Fail(name, absl::StrCat("field '", name, "' must be a number in ", low, "..", high));
      return;
    }
    *out = number;
  }

  template <typename T>
  void Integer(const std::string& name, int64_t low, int64_t high, T* out) {
    const json* value = Find(name);
    if (value == nullptr) return;
    const bool fits = value->is_number_unsigned()
                          ? value->get<uint64_t>() <= static_cast<uint64_t>(high)
                          : value->is_number_integer() && value->get<int64_t>() <= high &&
                                value->get<int64_t>() >= low;
    if (!fits || value->get<int64_t>() < low) {
      Fail(name, absl::StrCat("field '", name, "' must be an integer in ", low, "..", high));
      return;
    }
    *out = static_cast<T>(value->get<int64_t>());
  }

  void Bool(const std::string& name, bool* out) {
    const json* value = Find(name);
    if (value == nullptr) return;
    if (!value->is_boolean()) {
      Fail(name, absl::StrCat("field '", name, "' must be true or false"));
      return;
    }
    *out = value->get<bool>();
  }

  // A field of the API that is accepted only with a value that changes nothing.
  void Unsupported(const std::string& name, const std::function<bool(const json&)>& neutral) {
    const json* value = Find(name);
    if (value != nullptr && !neutral(*value)) {
      Fail(name,
           absl::StrCat("field '", name, "' is not supported with this value yet; leave it out"));
    }
  }

  void RefuseUnknown() {
    for (const auto& [name, value] : body_.items()) {
      if (seen_.count(name) == 0) {
        Fail(name, absl::StrCat("field '", name, "' is not known"));
        return;
      }
    }
  }

 private:
  const json& body_;
  std::optional<Error> error_;
  std::set<std::string> seen_;
};

void ReadPrompt(Reader& reader, Request* request) {
  const json* prompt = reader.Find("prompt");
  if (prompt == nullptr) {
    reader.Fail("prompt", "field 'prompt' is missing");
  } else if (prompt->is_string()) {
    request->prompt = prompt->get<std::string>();
  } else if (prompt->is_array() && prompt->size() == 1 && (*prompt)[0].is_string()) {
    request->prompt = (*prompt)[0].get<std::string>();
  } else if (prompt->is_array() && !prompt->empty() && (*prompt)[0].is_number_integer()) {
    std::vector<int> tokens;
    for (const json& token : *prompt) {
      if (!token.is_number_integer() || token.get<int64_t>() < 0 ||
          token.get<int64_t>() > std::numeric_limits<int>::max()) {
        reader.Fail("prompt", "field 'prompt': token ids must be integers from 0 on");
        return;
      }
      tokens.push_back(token.get<int>());
    }
    request->prompt_tokens = std::move(tokens);
  } else {
    reader.Fail(
        "prompt",
        "field 'prompt' must be one string or one list of token ids (several prompts in one "
        "request are not supported yet)");
  }
}

void ReadMessages(Reader& reader, Request* request) {
  const json* messages = reader.Find("messages");
  if (messages == nullptr || !messages->is_array() || messages->empty() ||
      messages->size() > kMaxMessages) {
    reader.Fail("messages", "field 'messages' must be a list of 1 to 4096 messages");
    return;
  }
  for (size_t i = 0; i < messages->size(); ++i) {
    const json& message = (*messages)[i];
    const std::string place = absl::StrCat("messages[", i, "]");
    if (!message.is_object() || !message.contains("role") || !message["role"].is_string()) {
      reader.Fail("messages", absl::StrCat(place, " must be an object with a string 'role'"));
      return;
    }
    const std::string role = message["role"].get<std::string>();
    if (role != "system" && role != "developer" && role != "user" && role != "assistant") {
      reader.Fail("messages", absl::StrCat(place,
                                           ".role must be system, developer, user or "
                                           "assistant"));
      return;
    }
    std::string content;
    const auto it = message.find("content");
    if (it != message.end() && it->is_string()) {
      content = it->get<std::string>();
    } else if (it != message.end() && it->is_array()) {
      for (const json& part : *it) {
        if (!part.is_object() || part.value("type", json()) != "text" || !part.contains("text") ||
            !part["text"].is_string()) {
          reader.Fail("messages", absl::StrCat(place, ".content may hold parts of type text only"));
          return;
        }
        content += part["text"].get<std::string>();
      }
    } else {
      reader.Fail("messages", absl::StrCat(place, ".content must be a string"));
      return;
    }
    request->messages.push_back({role, std::move(content)});
  }
}

void ReadStop(Reader& reader, Request* request) {
  const json* stop = reader.Find("stop");
  if (stop == nullptr) return;
  if (stop->is_string()) {
    request->stop.push_back(stop->get<std::string>());
    return;
  }
  bool good = stop->is_array();
  if (good) {
    for (const json& entry : *stop) good = good && entry.is_string();
  }
  if (!good) {
    reader.Fail("stop", "field 'stop' must be a string or a list of strings");
    return;
  }
  for (const json& entry : *stop) request->stop.push_back(entry.get<std::string>());
}

void ReadStreamOptions(Reader& reader, Request* request) {
  const json* options = reader.Find("stream_options");
  if (options == nullptr) return;
  if (!options->is_object()) {
    reader.Fail("stream_options", "field 'stream_options' must be an object");
    return;
  }
  const auto it = options->find("include_usage");
  if (it != options->end() && it->is_boolean()) {
    request->include_usage = it->get<bool>();
  } else if (it != options->end()) {
    reader.Fail("stream_options", "stream_options.include_usage must be true or false");
  }
}

void ReadUnsupported(Kind kind, Reader& reader) {
  const auto is_zero = [](const json& v) { return v.is_number() && v.get<double>() == 0; };
  const auto is_one = [](const json& v) { return v.is_number() && v.get<double>() == 1; };
  const auto is_false = [](const json& v) { return v.is_boolean() && !v.get<bool>(); };
  const auto is_empty = [](const json& v) { return v.empty(); };
  for (const char* name : {"n", "best_of"}) reader.Unsupported(name, is_one);
  for (const char* name : {"frequency_penalty", "presence_penalty", "min_p"}) {
    reader.Unsupported(name, is_zero);
  }
  reader.Unsupported("repetition_penalty", is_one);
  reader.Unsupported("echo", is_false);
  reader.Unsupported("logit_bias", is_empty);
  reader.Unsupported("suffix", is_empty);
  if (kind == Kind::kCompletion) {
    reader.Unsupported("logprobs", [](const json&) { return false; });
  } else {
    reader.Unsupported("logprobs", is_false);
    reader.Unsupported("top_logprobs", is_zero);
    reader.Unsupported("tools", is_empty);
    reader.Unsupported("tool_choice", [](const json& v) { return v == "none" || v == "auto"; });
    reader.Unsupported("parallel_tool_calls", [](const json& v) { return v.is_boolean(); });
    reader.Unsupported("response_format", [](const json& v) {
      return v.is_object() && v.value("type", json()) == "text";
    });
  }
  // Labels that do not change the answer.
  for (const char* name : {"user", "metadata", "store", "request_id"}) reader.Find(name);
}

json UsageJson(const UsageCounts& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
          {"speculation",
           {{"drafted_tokens", usage.drafted_tokens},
            {"accepted_tokens", usage.accepted_tokens},
            {"verification_steps", usage.verification_steps}}}};
}

json Frame(const Head& head, bool chunk) {
  const char* object = head.kind == Kind::kCompletion ? "text_completion"
                       : chunk                        ? "chat.completion.chunk"
                                                      : "chat.completion";
  return {{"id", head.id},
          {"object", object},
          {"created", head.created_unix_seconds},
          {"model", head.model}};
}

json ReasonJson(const std::string& reason) { return reason.empty() ? json() : json(reason); }

std::string Event(const json& value) { return absl::StrCat("data: ", Dump(value), "\n\n"); }

}  // namespace

const char kDone[] = "data: [DONE]\n\n";

std::optional<Error> Parse(Kind kind, const std::string& body, Request* request) {
  json parsed;
  try {
    parsed = json::parse(body);
  } catch (const json::exception& e) {
    return Error{.message = absl::StrCat("the body is not valid JSON: ", e.what())};
  }
  if (!parsed.is_object()) return Error{.message = "the body must be a JSON object"};
  Reader reader(parsed);
  reader.String("model", true, &request->model);
  if (kind == Kind::kCompletion) {
    ReadPrompt(reader, request);
    reader.Integer("max_tokens", 1, kMaxTokensLimit, &request->max_tokens);
  } else {
    ReadMessages(reader, request);
    reader.Integer("max_tokens", 1, kMaxTokensLimit, &request->max_tokens);
    reader.Integer("max_completion_tokens", 1, kMaxTokensLimit, &request->max_tokens);
  }
  ReadStop(reader, request);
  reader.Number("temperature", 0, 2, &request->temperature);
  reader.Number("top_p", 0, 1, &request->top_p);
  if (request->top_p == 0) reader.Fail("top_p", "field 'top_p' must be greater than 0");
  reader.Integer("top_k", -1, 1 << 30, &request->top_k);
  if (request->top_k < 0) request->top_k = 0;  // vLLM's "off"
  if (reader.Find("seed") != nullptr) {
    int64_t seed = 0;
    reader.Integer("seed", std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max(),
                   &seed);
    request->seed = static_cast<uint64_t>(seed);
  }
  reader.Bool("stream", &request->stream);
  ReadStreamOptions(reader, request);
  reader.Bool("ignore_eos", &request->ignore_eos);
  if (reader.Find("speculation") != nullptr) {
    bool on = true;
    reader.Bool("speculation", &on);
    request->speculation = on;
  }
  ReadUnsupported(kind, reader);
  reader.RefuseUnknown();
  return reader.error();
}

std::string ToJson(const Error& error) {
  return Dump({{"error",
                {{"message", error.message},
                 {"type", error.type},
                 {"param", error.param.empty() ? json() : json(error.param)},
                 {"code", error.code.empty() ? json() : json(error.code)}}}});
}

Error FromStatus(const absl::Status& status) {
  Error error{.message = std::string(status.message())};
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kOutOfRange:
      break;
    case absl::StatusCode::kUnauthenticated:
      error.http_status = 401;
      error.type = "authentication_error";
      error.code = "invalid_api_key";
      break;
    case absl::StatusCode::kPermissionDenied:
      error.http_status = 403;
      error.type = "permission_error";
      break;
    case absl::StatusCode::kNotFound:
      error.http_status = 404;
      error.code = "model_not_found";
      break;
    case absl::StatusCode::kResourceExhausted:
      error.http_status = 429;
      error.type = "rate_limit_error";
      error.code = "queue_full";
      break;
    case absl::StatusCode::kUnavailable:
      error.http_status = 503;
      error.type = "server_error";
      break;
    case absl::StatusCode::kUnimplemented:
      error.http_status = 501;
      break;
    default:
      error.http_status = 500;
      error.type = "server_error";
  }
  return error;
}

std::string WholeAnswer(const Head& head, const std::string& text, const std::string& finish_reason,
                        const UsageCounts& usage) {
  json answer = Frame(head, false);
  json choice = {{"index", 0}, {"logprobs", nullptr}, {"finish_reason", ReasonJson(finish_reason)}};
  if (head.kind == Kind::kCompletion) {
    choice["text"] = text;
  } else {
    choice["message"] = {{"role", "assistant"}, {"content", text}};
  }
  answer["choices"] = json::array({choice});
  answer["usage"] = UsageJson(usage);
  return Dump(answer);
}

std::string FirstChunk(const Head& head) {
  if (head.kind == Kind::kCompletion) return "";
  json chunk = Frame(head, true);
  chunk["choices"] = json::array({{{"index", 0},
                                   {"delta", {{"role", "assistant"}, {"content", ""}}},
                                   {"finish_reason", nullptr}}});
  return Event(chunk);
}

std::string Chunk(const Head& head, const std::string& text, const std::string& finish_reason) {
  json chunk = Frame(head, true);
  json choice = {{"index", 0}, {"finish_reason", ReasonJson(finish_reason)}};
  if (head.kind == Kind::kCompletion) {
    choice["text"] = text;
    choice["logprobs"] = nullptr;
  } else {
    choice["delta"] = text.empty() ? json::object() : json{{"content", text}};
  }
  chunk["choices"] = json::array({choice});
  return Event(chunk);
}

std::string UsageChunk(const Head& head, const UsageCounts& usage) {
  json chunk = Frame(head, true);
  chunk["choices"] = json::array();
  chunk["usage"] = UsageJson(usage);
  return Event(chunk);
}

std::string ErrorChunk(const Error& error) { return absl::StrCat("data: ", ToJson(error), "\n\n"); }

std::string ModelList(const std::vector<ModelEntry>& models) {
  json data = json::array();
  for (const ModelEntry& model : models) {
    data.push_back({{"id", model.name},
                    {"object", "model"},
                    {"created", model.created_unix_seconds},
                    {"owned_by", "espalier"}});
  }
  return Dump({{"object", "list"}, {"data", data}});
}

}  // namespace espalier::openai
