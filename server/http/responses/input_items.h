// Input and output items of the Responses API, and their conversion to chat turns. Pure functions.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "espalier/v1/inference.pb.h"
#include "server/http/json_reader.h"
#include "server/http/openai_error.h"

namespace espalier::openai {

// Generates the IDs of one response's items: "msg_", "fc_", "rs_" plus the response's ID.
class ItemIds {
 public:
  explicit ItemIds(std::string base = "") : base_(std::move(base)) {}
  std::string New(const char* prefix);
  // Returns an ID for an item of this type.
  std::string NewFor(const std::string& type);

 private:
  std::string base_;
  int next_ = 0;
};

// Reads the field "input": a user text, or a list of messages, function calls, their outputs,
// reasoning and item references. Stores the items in the form in which they are listed later, with
// an ID for each that has none. A given ID has at most kMaxItemIdBytes bytes and must be unique.
// Rejects images, files and items of other tools by name.
void ReadInput(JsonReader& reader, ItemIds* ids, nlohmann::ordered_json* items);

inline constexpr size_t kMaxItemIdBytes = 64;

// Limit on what one input refers to, the same as for an HTTP body: a reference is short, but its
// target is copied each time.
inline constexpr size_t kMaxReferencedBytes = 8 << 20;

// Replaces references by their targets; `find` returns null for unknown IDs. Fails if the targets
// exceed kMaxReferencedBytes.
using FindItem =
    std::function<std::shared_ptr<const nlohmann::ordered_json>(const std::string& id)>;
std::optional<Error> ResolveReferences(const FindItem& find, nlohmann::ordered_json* items);

// Gives a new ID to each item whose ID occurs in `before` or earlier in `items`. IDs must be
// unique, because they are the cursor by which items are paged.
void MakeIdsUnique(const nlohmann::ordered_json& before, ItemIds* ids,
                   nlohmann::ordered_json* items);

// Appends the conversation to `chat` as turns. Consecutive reasoning, text and calls of the
// assistant become one turn, as templates expect. Fails if an output answers no earlier call.
std::optional<Error> AddTurns(const nlohmann::ordered_json& items, v1::ChatPrompt* chat);

}  // namespace espalier::openai
