#include "server/http/responses/responses_request.h"

#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/http/json_reader.h"
#include "server/http/openai_chat.h"
#include "server/http/openai_sampling.h"
#include "server/http/openai_structured_output.h"

namespace espalier::openai {
namespace {

using json = nlohmann::ordered_json;

constexpr char kLogprobs[] = "message.output_text.logprobs";
constexpr int kMaxMetadata = 16;
constexpr size_t kMaxEchoBytes = 1 << 20;

json OrDefault(const json* value, json otherwise) {
  return value == nullptr ? std::move(otherwise) : *value;
}

std::optional<std::string> NameOf(const json& tool) {
  if (!tool.is_object() || tool.value("type", json()) != "function" ||
      !tool.value("name", json()).is_string()) {
    return std::nullopt;
  }
  return tool["name"].get<std::string>();
}

// Here name and parameters are fields of the tool itself.
void ReadFlatTool(const json& tool, const std::string& place, JsonReader& outer,
                  std::vector<std::string>* names, ResponsesRequest* request) {
  const json type = tool.is_object() ? tool.value("type", json()) : json();
  if (type != "function") {
    outer.Fail("tools", absl::StrCat(place, " is of type '",
                                     type.is_string() ? type.get<std::string>().substr(0, 60)
                                                      : std::string("?"),
                                     "'; this server runs no tools of its own: give functions "
                                     "(type 'function') and run them yourself"));
    return;
  }
  json function = tool;
  function.erase("type");
  // Strict only on request, since not every schema is supported.
  if (function.value("strict", json()).is_null()) function["strict"] = false;
  const json own = {{"type", "function"}, {"function", function}};
  if (!AddFunction(function, Dump(own), place, outer, names, request->generate.mutable_chat())) {
    return;
  }
  json shown = {{"type", "function"}};
  for (const char* field : {"name", "description", "parameters", "strict"}) {
    shown[field] = function.value(field, json());
  }
  request->echo["tools"].push_back(std::move(shown));
}

void ReadFlatTools(JsonReader& reader, ResponsesRequest* request) {
  request->echo["tools"] = json::array();
  std::vector<std::string> names;
  ReadToolList(reader, [&](const json& tool, const std::string& place) {
    ReadFlatTool(tool, place, reader, &names, request);
  });
  bool parallel = true;
  reader.Bool("parallel_tool_calls", &parallel);
  request->generate.mutable_chat()->set_single_tool_call(!parallel);
  ReadToolChoice(reader, names, NameOf, request->generate.mutable_chat());
  request->echo["parallel_tool_calls"] = parallel;
  request->echo["tool_choice"] = OrDefault(reader.Find("tool_choice"), "auto");
  // Limits calls of built-in tools, of which there are none.
  int calls = 0;
  reader.Integer("max_tool_calls", 1, kMaxTokensLimit, &calls);
  request->echo["max_tool_calls"] = calls > 0 ? json(calls) : json();
}

// {"format": {...}}, with the schema's fields not nested.
void ReadText(JsonReader& reader, ResponsesRequest* request) {
  const json* text = reader.Find("text");
  request->echo["text"] = {{"format", {{"type", "text"}}}};
  if (text == nullptr) return;
  if (!text->is_object()) {
    reader.Fail("text", "field 'text' must be an object");
    return;
  }
  JsonReader outer(*text, "text.");
  outer.Unsupported("verbosity", [](const json& v) { return v == "medium"; });
  const json* format = outer.Find("format");
  outer.RefuseUnknown();
  if (outer.error()) reader.Fail("text", outer.error()->message);
  if (format == nullptr) return;
  if (!format->is_object()) {
    reader.Fail("text", "field 'text.format' must be an object");
    return;
  }
  JsonReader inner(*format, "text.format.");
  std::string type;
  inner.String("type", true, &type);
  v1::StructuredOutput form;
  if (type == "json_schema") {
    inner.Ignore({"name", "description", "strict"});
    if (const json* schema = inner.Find("schema")) {
      CheckStrictSchema(*schema, inner);
      form.set_json_schema(SchemaText(*schema));
    } else {
      inner.Fail("schema", "field 'text.format.schema' is missing");
    }
  } else if (type == "json_object") {
    form.set_json_object(true);
  } else if (type != "text") {
    inner.Fail("type", "field 'text.format.type' must be text, json_object or json_schema");
  }
  inner.RefuseUnknown();
  if (inner.error()) reader.Fail("text", inner.error()->message);
  if (type != "text") {
    if (request->generate.has_structured_output()) {
      reader.Fail("text", "only one of text.format, structured_outputs and guided_... can hold");
    }
    *request->generate.mutable_structured_output() = std::move(form);
  }
  request->echo["text"]["format"] = *format;
}

void ReadReasoningOptions(JsonReader& reader, ResponsesRequest* request) {
  reader.Bool("include_reasoning", &request->include_reasoning);
  const json* reasoning = reader.Find("reasoning");
  json effort, summary;
  if (reasoning != nullptr && !reasoning->is_object()) {
    reader.Fail("reasoning", "field 'reasoning' must be an object");
  } else if (reasoning != nullptr) {
    JsonReader inner(*reasoning, "reasoning.");
    ReadEffort(inner, "effort", request->generate.mutable_chat());
    effort = reasoning->value("effort", json());
    // Summaries are not supported; the full reasoning is returned. "auto" asks for the best
    // available.
    for (const char* name : {"summary", "generate_summary"}) {
      inner.Unsupported(name, [](const json& v) { return v == "auto"; });
    }
    summary = reasoning->value("summary", json());
    inner.RefuseUnknown();
    if (inner.error()) reader.Fail("reasoning", inner.error()->message);
  }
  request->echo["reasoning"] = {{"effort", effort}, {"summary", summary}};
}

// Extra parts of the answer. Those of built-in tools have nothing to add.
void ReadInclude(JsonReader& reader, ResponsesRequest* request) {
  static const std::set<std::string>& known =
      *new std::set<std::string>{"code_interpreter_call.outputs",
                                 "computer_call_output.output.image_url",
                                 "file_search_call.results",
                                 "message.input_image.image_url",
                                 kLogprobs,
                                 "reasoning.encrypted_content",
                                 "web_search_call.action.sources",
                                 "web_search_call.results"};
  bool logprobs = false;
  reader.Strings("include", known.size(), [&](const std::string& name) {
    if (known.count(name) == 0) {
      reader.Fail("include",
                  absl::StrCat("field 'include': '", name.substr(0, 100), "' is not known",
                               DidYouMean(name, {known.begin(), known.end()})));
    }
    logprobs = logprobs || name == kLogprobs;
  });
  int top = 0;
  reader.Integer("top_logprobs", 0, 64, &top);
  if (top > 0 && !logprobs) {
    reader.Fail("top_logprobs",
                absl::StrCat("field 'top_logprobs' goes with 'include': [\"", kLogprobs, "\"]"));
  }
  if (logprobs) request->generate.set_logprobs(top);
  request->echo["top_logprobs"] = top;
}

void ReadMetadata(JsonReader& reader, ResponsesRequest* request) {
  const json* metadata = reader.Find("metadata");
  request->echo["metadata"] = OrDefault(metadata, json::object());
  if (metadata == nullptr) return;
  bool good = metadata->is_object() && metadata->size() <= kMaxMetadata;
  for (const auto& entry : metadata->items()) {
    good = good && entry.value().is_string() && entry.key().size() <= 64 &&
           entry.value().get_ref<const std::string&>().size() <= 512;
  }
  if (!good) {
    reader.Fail("metadata",
                "field 'metadata' must be an object of at most 16 strings of up to 512 bytes, with "
                "names of up to 64");
  }
}

void ReadStorage(JsonReader& reader, ResponsesRequest* request) {
  bool store = true;
  if (reader.Find("store") != nullptr) {
    reader.Bool("store", &store);
    request->store = store;
  }
  reader.Bool("background", &request->background);
  if (request->background && !store) {
    reader.Fail("background", "field 'background': what is not stored cannot be fetched later on");
  }
  reader.String("previous_response_id", false, &request->previous);
  std::string truncation = "disabled";
  reader.String("truncation", false, &truncation);
  if (truncation != "auto" && truncation != "disabled") {
    reader.Fail("truncation", "field 'truncation' must be auto or disabled");
  }
  request->truncate = truncation == "auto";
  request->echo["truncation"] = truncation;
  request->echo["background"] = request->background;
  request->echo["previous_response_id"] =
      request->previous.empty() ? json() : json(request->previous);
}

}  // namespace

std::optional<Error> ParseResponses(const std::string& body, ItemIds* ids,
                                    ResponsesRequest* request) {
  json parsed;
  if (auto error = JsonReader::ParseBody(body, &parsed)) return error;
  JsonReader reader(parsed);
  v1::GenerateRequest& generate = request->generate;
  json& echo = request->echo;
  reader.String("model", true, generate.mutable_model());
  generate.mutable_chat();
  reader.String("instructions", false, &request->instructions);
  echo["instructions"] = request->instructions.empty() ? json() : json(request->instructions);
  ReadInput(reader, ids, &request->items);
  int most = 0;
  reader.Integer("max_output_tokens", 1, kMaxTokensLimit, &most);
  generate.set_max_tokens(most);
  echo["max_output_tokens"] = most > 0 ? json(most) : json();
  ReadStream(reader, &request->stream);
  ReadStorage(reader, request);
  ReadSampling(reader, &generate);
  ReadOutputOptions(reader, &generate);
  ReadStructuredOutput(reader, &generate);
  ReadText(reader, request);
  ReadFlatTools(reader, request);
  ReadReasoningOptions(reader, request);
  ReadTemplateArguments(reader, generate.mutable_chat());
  ReadInclude(reader, request);
  ReadMetadata(reader, request);
  // A response has one answer and no place for these.
  reader.Unsupported("n", [](const json& v) { return v == 1; });
  for (const char* name : {"prompt_logprobs", "truncate_prompt_tokens", "request_id",
                           "response_format", "conversation", "prompt", "context_management",
                           "moderation", "image", "access_programs", "background_options"}) {
    reader.Unsupported(name, IsOff);
  }
  std::string tier;
  ReadServiceTier(reader, &tier);
  if (!tier.empty()) echo["service_tier"] = tier;
  for (const char* name : {"user", "safety_identifier", "prompt_cache_key"}) {
    std::string label;
    reader.String(name, false, &label);
    if (!label.empty()) echo[name] = label;
  }
  // The prefix cache covers every prompt.
  reader.Ignore({"prompt_cache_retention", "prompt_cache_options"});
  reader.RefuseUnknown();
  if (reader.error()) return reader.error();
  // The echo is stored with the request and written with every response event. Instructions are
  // bounded by the model's context.
  request->echo_bytes = Dump(echo).size();
  const size_t rest = request->echo_bytes - Dump(echo["instructions"]).size();
  if (rest > kMaxEchoBytes) {
    return Error{.message = absl::StrCat("what a response repeats of its request (tools, text, "
                                         "metadata etc.) has ",
                                         rest, " bytes, expected at most ", kMaxEchoBytes),
                 .param = echo["tools"].empty() ? "text" : "tools"};
  }
  return std::nullopt;
}

std::optional<Error> FillChat(const json& before, ResponsesRequest* request) {
  v1::ChatPrompt* chat = request->generate.mutable_chat();
  if (!request->instructions.empty()) {
    v1::ChatTurn* turn = chat->add_turns();
    turn->set_role("system");
    turn->set_content(request->instructions);
  }
  json all = before;
  all.insert(all.end(), request->items.begin(), request->items.end());
  request->items = std::move(all);
  if (auto error = AddTurns(request->items, chat)) return error;
  if (chat->turns().empty()) {
    return Error{.message = "field 'input' holds nothing to answer", .param = "input"};
  }
  return std::nullopt;
}

}  // namespace espalier::openai
