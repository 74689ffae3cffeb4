#include "server/http/responses/truncate_conversation.h"

#include <algorithm>
#include <vector>

#include "server/inference/requests/generation.h"

namespace espalier {
namespace {

bool Stays(const v1::ChatTurn& turn) {
  return turn.role() == "system" || turn.role() == "developer";
}

v1::ChatPrompt From(const v1::ChatPrompt& chat, int first) {
  v1::ChatPrompt out = chat;
  out.clear_turns();
  for (int i = 0; i < chat.turns_size(); ++i) {
    if (i >= first || Stays(chat.turns(i))) *out.add_turns() = chat.turns(i);
  }
  return out;
}

}  // namespace

absl::Status TruncateConversation(const LoadedModel& model, v1::GenerateRequest* request) {
  const v1::ChatPrompt whole = request->chat();
  const int room = MaxPromptTokens(model.engine->context(), request->max_tokens());
  // Returns whether the conversation fits if it starts at this turn.
  const auto fits = [&](int first) -> absl::StatusOr<bool> {
    *request->mutable_chat() = From(whole, first);
    absl::StatusOr<Prompt> prompt = PromptOf(*request, model);
    if (!prompt.ok()) return prompt.status();
    return static_cast<int>(prompt->tokens.size()) <= room;
  };
  std::vector<int> starts = {0};
  for (int i = 1; i < whole.turns_size(); ++i) {
    if (whole.turns(i).role() == "user") starts.push_back(i);
  }
  // Binary search for the first start that fits; later starts are shorter.
  size_t low = 0, high = starts.size() - 1;
  while (low < high) {
    // Try the whole first: most conversations fit.
    const size_t middle = low == 0 && high == starts.size() - 1 ? 0 : (low + high) / 2;
    absl::StatusOr<bool> good = fits(starts[middle]);
    if (!good.ok()) return good.status();
    if (*good) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  *request->mutable_chat() = From(whole, starts[low]);
  return absl::OkStatus();
}

}  // namespace espalier
