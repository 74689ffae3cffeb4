// From a conversation to a model's prompt.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "proto/inference.pb.h"
#include "serving/tokenizer/tokenizer.h"

namespace espalier {

// InvalidArgument naming the turn or the field. Without a template of the model's own: the plain
// form of serving/tokenizer/chat_template.h; tools become a system turn that describes them, calls
// and their results plain text.
absl::StatusOr<std::vector<int>> RenderChat(const proto::ChatPrompt& chat,
                                            const Tokenizer& tokenizer);

}  // namespace espalier
