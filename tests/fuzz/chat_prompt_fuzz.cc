// Fuzzes chat prompts: any conversation gives a prompt or an error, for any client template,
// variables, tools and calls. The input is four texts separated by lines of ---: a template, a body
// of /v1/chat/completions, and gRPC's raw tool_calls and template_arguments.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/testing/fake_clock.h"
#include "server/http/openai_request.h"
#include "server/inference/requests/chat_prompt.h"
#include "serving/tokenizer/byte_tokenizer.h"

namespace {

using espalier::ChatTemplate;

constexpr size_t kTexts = 4;
constexpr absl::string_view kBetween = "\n---\n";

std::array<std::string, kTexts> Split(absl::string_view input) {
  std::array<std::string, kTexts> texts;
  for (size_t i = 0; i < kTexts; ++i) {
    const size_t end = i + 1 < kTexts ? input.find(kBetween) : absl::string_view::npos;
    texts[i] = std::string(input.substr(0, end));
    if (end == absl::string_view::npos) break;
    input.remove_prefix(end + kBetween.size());
  }
  return texts;
}

void Render(const espalier::v1::ChatPrompt& chat, const ChatTemplate* format) {
  static const auto* const tokenizer = espalier::ByteTokenizer::Create()->release();
  static const auto* const clock = new espalier::FakeClock;
  const auto prompt = espalier::RenderChat(chat, *tokenizer, format, clock);
  if (!prompt.ok() && prompt.status().message().empty()) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto [source, body, tool_calls, variables] =
      Split(absl::string_view(reinterpret_cast<const char*>(data), size));
  const auto format = ChatTemplate::Replace(nullptr, source);
  espalier::openai::Request request;
  if (espalier::openai::Parse(espalier::openai::Kind::kChat, body, &request)) {
    // Gives the other inputs a conversation.
    request = {};
    auto* turn = request.generate.mutable_chat()->add_turns();
    turn->set_role("assistant");
    turn->set_content(body);
  }
  espalier::v1::ChatPrompt chat = request.generate.chat();
  Render(chat, nullptr);
  if (!format.ok()) return 0;
  Render(chat, format->get());
  if (!tool_calls.empty() && !chat.turns().empty()) {
    chat.mutable_turns(chat.turns_size() - 1)->set_tool_calls(tool_calls);
  }
  chat.set_template_arguments(variables);
  Render(chat, format->get());
  return 0;
}
