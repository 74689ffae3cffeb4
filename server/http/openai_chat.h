// Parses the chat-only fields: messages, tools, reasoning.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "server/http/json_reader.h"
#include "server/http/openai_request.h"

namespace espalier::openai {

inline constexpr size_t kMaxMessages = 4096;
inline constexpr size_t kMaxTools = 128;

void ReadMessages(JsonReader& reader, v1::ChatPrompt* chat);

// Reads a list of messages into turns: of each its role, and with `read` all its other fields.
// Errors are under "messages" in `outer`.
using MessageReader =
    std::function<void(JsonReader& message, const std::string& place, v1::ChatTurn* turn)>;
void ReadMessageList(const nlohmann::ordered_json& messages, JsonReader& outer,
                     const MessageReader& read, v1::ChatPrompt* chat);

// Reads tools, tool_choice and parallel_tool_calls.
void ReadTools(JsonReader& reader, v1::ChatPrompt* chat);

// Reads the field "tools": calls `read` with each tool and its place, up to the first error.
void ReadToolList(
    JsonReader& reader,
    const std::function<void(const nlohmann::ordered_json& tool, const std::string& place)>& read);

// Adds a function (name, description, parameters, strict) to the chat; templates see it as `text`,
// its JSON in the API's form. Returns false with an error under "tools" in `outer` if it is
// malformed.
bool AddFunction(const nlohmann::ordered_json& function, const std::string& text,
                 const std::string& place, JsonReader& outer, std::vector<std::string>* names,
                 v1::ChatPrompt* chat);

// Returns the function name in an API's tool_choice object, if it has one.
using FunctionName = std::function<std::optional<std::string>(const nlohmann::ordered_json&)>;
// Reads tool_choice. `names` are those of chat->tools; tools that are not allowed are removed.
void ReadToolChoice(JsonReader& reader, const std::vector<std::string>& names,
                    const FunctionName& name_of, v1::ChatPrompt* chat);

void ReadEffort(JsonReader& reader, const std::string& field, v1::ChatPrompt* chat);
void ReadTemplateArguments(JsonReader& reader, v1::ChatPrompt* chat);

// Reads reasoning_effort, include_reasoning and thinking_token_budget (vLLM), and reasoning_format
// (llama.cpp).
void ReadReasoning(JsonReader& reader, Request* request);

}  // namespace espalier::openai
