// How tokens are chosen, where an answer ends and whether it is streamed: fields of every
// generating route.
#pragma once

#include <functional>

#include "proto/inference.pb.h"
#include "server/http/json_reader.h"

namespace espalier::openai {

inline constexpr int kMaxTokensLimit = 1 << 20;

// temperature to min_tokens. What a body leaves out stays absent: the model may have a default of
// its own.
void ReadSampling(JsonReader& reader, proto::GenerateRequest* generate);

// stop to speculation: how the answer ends and what comes with it.
void ReadAnswer(JsonReader& reader, proto::GenerateRequest* generate);

// stream, and stream_options, which go with it; `read` reads further ones.
void ReadStream(JsonReader& reader, bool* stream,
                const std::function<void(JsonReader& options)>& read = nullptr);

}  // namespace espalier::openai
