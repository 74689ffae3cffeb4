// How tokens are chosen, where an answer ends and whether it is streamed: fields of every
// generating route.
#pragma once

#include <functional>
#include <string>

#include "absl/strings/string_view.h"
#include "espalier/v1/inference.pb.h"
#include "server/http/json_reader.h"

namespace espalier::openai {

inline constexpr int kMaxTokensLimit = 1 << 20;

// temperature to min_tokens. What a body leaves out stays absent: the model may have a default of
// its own.
void ReadSampling(JsonReader& reader, v1::GenerateRequest* generate);

// stop to speculation: how the answer ends and what comes with it.
void ReadOutputOptions(JsonReader& reader, v1::GenerateRequest* generate);

// truncate_prompt_tokens: a number of tokens from 1 on, or -1: as many as there is room for.
void ReadTruncation(JsonReader& reader, int* most);

// priority, cache_salt and timeout; as the fields of a GenerateRequest.
struct Queueing {
  int priority = 0;
  std::string cache_salt;
  double timeout_seconds = 0;
};
Queueing ReadQueueing(JsonReader& reader);

// request_id: part of the answer's id.
void ReadRequestId(JsonReader& reader, std::string* id);
// Whether it is short and of letters, digits and "-_.:", so that it can stand in an id and a log.
bool IsRequestId(absl::string_view id);

// service_tier. There is one here, the default; `out` gets its name if the field is given.
void ReadServiceTier(JsonReader& reader, std::string* out);

// stream, and stream_options, which go with it; `read` reads further ones.
void ReadStream(JsonReader& reader, bool* stream,
                const std::function<void(JsonReader& options)>& read = nullptr);

}  // namespace espalier::openai
