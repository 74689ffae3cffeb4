// From a conversation to a model's prompt.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "proto/inference.pb.h"
#include "server/clock.h"
#include "serving/chat/chat_format.h"
#include "serving/tokenizer/tokenizer.h"

namespace espalier {

// InvalidArgument naming the turn or the field; errors of the model's own template. Without one
// (`format` is null): the plain form of serving/tokenizer/chat_template.h; tools become a system
// turn that describes them, calls and their results plain text. `clock` is for templates that ask
// for the date.
absl::StatusOr<std::vector<int>> RenderChat(const proto::ChatPrompt& chat,
                                            const Tokenizer& tokenizer, const ChatFormat* format,
                                            const Clock* clock);

}  // namespace espalier
