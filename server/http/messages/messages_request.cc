#include "server/http/messages/messages_request.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/http/json_reader.h"
#include "server/http/messages/content_blocks.h"
#include "server/http/openai_chat.h"
#include "server/http/openai_sampling.h"
#include "server/http/openai_structured_output.h"

namespace espalier::anthropic {
namespace {

using json = nlohmann::ordered_json;
using openai::Error;
using openai::IsOff;
using openai::JsonReader;

void ReadTool(const json& tool, const std::string& place, JsonReader& outer,
              std::vector<std::string>* names, v1::ChatPrompt* chat) {
  if (!tool.is_object()) {
    outer.Fail("tools", place + " must be an object");
    return;
  }
  JsonReader reader(tool, place + ".");
  std::string type;
  reader.String("type", false, &type);
  if (!type.empty() && type != "custom") {
    outer.Fail("tools", absl::StrCat(place, " is of type '", type.substr(0, 60),
                                     "'; this server knows no such tool: give a name, a "
                                     "description and an input_schema"));
    return;
  }
  json function = json::object();
  for (const char* field : {"name", "description", "strict"}) {
    if (const json* value = reader.Find(field)) function[field] = *value;
  }
  const json* schema = reader.Find("input_schema");
  if (schema == nullptr || !schema->is_object()) {
    reader.Fail("input_schema", place + ".input_schema must be a JSON schema");
  } else {
    function["parameters"] = *schema;
  }
  // No effect: input always streams as it is generated, and every prompt is cached.
  reader.Ignore({"cache_control", "eager_input_streaming"});
  reader.Unsupported("allowed_callers", [](const json& v) { return v == json::array({"direct"}); });
  for (const char* field : {"defer_loading", "input_examples"}) reader.Unsupported(field, IsOff);
  reader.RefuseUnknown();
  if (reader.error()) {
    outer.Fail("tools", reader.error()->message);
    return;
  }
  openai::AddFunction(function, openai::Dump({{"type", "function"}, {"function", function}}), place,
                      outer, names, chat);
}

// Converts to the chat format and lets its reader check consistency.
void ReadChoice(JsonReader& reader, const std::vector<std::string>& names, v1::ChatPrompt* chat) {
  const json* choice = reader.Find("tool_choice");
  if (choice == nullptr || reader.error()) return;
  if (!choice->is_object()) {
    reader.Fail("tool_choice", "field 'tool_choice' must be an object");
    return;
  }
  JsonReader inner(*choice, "tool_choice.");
  std::string type, name;
  inner.String("type", true, &type);
  bool single = false;
  inner.Bool("disable_parallel_tool_use", &single);
  chat->set_single_tool_call(single);
  json as_chat;
  if (type == "auto" || type == "none") {
    as_chat["tool_choice"] = type;
  } else if (type == "any") {
    as_chat["tool_choice"] = "required";
  } else if (type == "tool") {
    inner.String("name", true, &name);
    as_chat["tool_choice"] = {{"name", name}};
  } else {
    inner.Fail("type", "field 'tool_choice.type' must be auto, any, tool or none");
  }
  inner.RefuseUnknown();
  if (inner.error()) {
    reader.Fail("tool_choice", inner.error()->message);
    return;
  }
  JsonReader translated(as_chat);
  openai::ReadToolChoice(
      translated, names, [&](const json&) -> std::optional<std::string> { return name; }, chat);
  if (translated.error()) reader.Fail("tool_choice", translated.error()->message);
}

void ReadClientTools(JsonReader& reader, v1::ChatPrompt* chat) {
  std::vector<std::string> names;
  openai::ReadToolList(reader, [&](const json& tool, const std::string& place) {
    ReadTool(tool, place, reader, &names, chat);
  });
  ReadChoice(reader, names, chat);
}

void ReadThinking(JsonReader& reader, MessagesRequest* request) {
  const json* thinking = reader.Find("thinking");
  if (thinking == nullptr) return;
  if (!thinking->is_object()) {
    reader.Fail("thinking", "field 'thinking' must be an object");
    return;
  }
  JsonReader inner(*thinking, "thinking.");
  std::string type, display;
  inner.String("type", true, &type);
  if (!inner.error() && type != "enabled" && type != "disabled" && type != "adaptive") {
    inner.Fail("type", "field 'thinking.type' must be enabled, disabled or adaptive");
  }
  int budget = 0;
  inner.Integer("budget_tokens", 1, openai::kMaxTokensLimit, &budget);
  inner.String("display", false, &display);
  if (!display.empty() && display != "summarized" && display != "omitted") {
    inner.Fail("display", "field 'thinking.display' must be summarized or omitted");
  }
  inner.RefuseUnknown();
  if (inner.error()) reader.Fail("thinking", inner.error()->message);
  request->no_thinking = type == "disabled";
  if (budget > 0) request->generate.mutable_chat()->set_thinking_token_budget(budget);
  request->include_thinking = type != "disabled" && display != "omitted";
}

void ReadOutput(JsonReader& reader, v1::GenerateRequest* generate) {
  const json* output = reader.Find("output_config");
  if (output == nullptr) return;
  if (!output->is_object()) {
    reader.Fail("output_config", "field 'output_config' must be an object");
    return;
  }
  JsonReader inner(*output, "output_config.");
  openai::ReadEffort(inner, "effort", generate->mutable_chat());
  if (const json* format = inner.Find("format")) {
    const bool good = format->is_object() && format->value("type", json()) == "json_schema" &&
                      format->value("schema", json()).is_object();
    if (good) {
      generate->mutable_structured_output()->set_json_schema(
          openai::SchemaText((*format)["schema"]));
    } else {
      inner.Fail("format",
                 "field 'output_config.format' must have the type json_schema and a 'schema'");
    }
  }
  inner.RefuseUnknown();
  if (inner.error()) reader.Fail("output_config", inner.error()->message);
}

void ReadSamplingAndOutput(JsonReader& reader, MessagesRequest* request) {
  v1::GenerateRequest& generate = request->generate;
  openai::ReadSampling(reader, &generate);
  openai::ReadOutputOptions(reader, &generate);
  int most = 0;
  reader.Integer("max_tokens", 1, openai::kMaxTokensLimit, &most);
  if (most == 0) reader.Fail("max_tokens", "field 'max_tokens' is missing");
  generate.set_max_tokens(most);
  reader.Strings("stop_sequences", 64, [&](const std::string& text) { generate.add_stop(text); });
  reader.Bool("stream", &request->stream);
  // A message has one answer, and stop_sequences replaces stop.
  reader.Unsupported("n", [](const json& v) { return v == 1; });
  for (const char* name : {"stop", "prompt_logprobs", "truncate_prompt_tokens"}) {
    reader.Unsupported(name, IsOff);
  }
}

}  // namespace

std::optional<Error> ParseMessages(Purpose purpose, const std::string& body,
                                   MessagesRequest* request) {
  json parsed;
  if (auto error = JsonReader::ParseBody(body, &parsed)) return error;
  JsonReader reader(parsed);
  v1::GenerateRequest& generate = request->generate;
  reader.String("model", true, generate.mutable_model());
  ReadSystem(reader, generate.mutable_chat());
  anthropic::ReadMessages(reader, generate.mutable_chat());
  ReadClientTools(reader, generate.mutable_chat());
  ReadThinking(reader, request);
  ReadOutput(reader, &generate);
  openai::ReadTemplateArguments(reader, generate.mutable_chat());
  if (purpose == Purpose::kAnswer) ReadSamplingAndOutput(reader, request);
  for (const char* name : {"container", "mcp_servers", "context_management", "diagnostics"}) {
    reader.Unsupported(name, IsOff);
  }
  reader.Unsupported("speed", [](const json& v) { return v == "standard"; });
  // Labels, and options of hosted services.
  reader.Ignore({"metadata", "cache_control", "service_tier", "inference_geo", "user_profile_id",
                 "workspace_id"});
  reader.RefuseUnknown();
  return reader.error();
}

}  // namespace espalier::anthropic
