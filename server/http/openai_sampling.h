// Parses the fields that all generating routes share: sampling, stop conditions, streaming,
// scheduling.
#pragma once

#include <functional>
#include <string>

#include "absl/strings/string_view.h"
#include "espalier/v1/inference.pb.h"
#include "server/http/json_reader.h"

namespace espalier::openai {

inline constexpr int kMaxTokensLimit = 1 << 20;

// Reads temperature to min_tokens. Absent fields stay absent: the model may have its own defaults.
void ReadSampling(JsonReader& reader, v1::GenerateRequest* generate);

// Reads stop to speculation: stop conditions and what comes with the answer.
void ReadOutputOptions(JsonReader& reader, v1::GenerateRequest* generate);

// Reads truncate_prompt_tokens: 1 or more, or -1 for as many as fit.
void ReadTruncation(JsonReader& reader, int* most);

// priority, cache_salt and timeout, as in GenerateRequest.
struct SchedulingFields {
  int priority = 0;
  std::string cache_salt;
  double timeout_seconds = 0;
};
SchedulingFields ReadSchedulingFields(JsonReader& reader);

// Reads request_id, which becomes part of the answer's ID.
void ReadRequestId(JsonReader& reader, std::string* id);
// Returns whether `id` is short and consists of letters, digits and "-_.:", safe for logs and IDs.
bool IsRequestId(absl::string_view id);

// Reads service_tier. Only the default exists; sets `out` to its name if the field is given.
void ReadServiceTier(JsonReader& reader, std::string* out);

// Reads stream and stream_options; `read` reads further options.
void ReadStream(JsonReader& reader, bool* stream,
                const std::function<void(JsonReader& options)>& read = nullptr);

}  // namespace espalier::openai
