// Runs chats on a real engine with a scripted model, for tests.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "base/testing/fake_clock.h"
#include "server/inference/requests/generation.h"
#include "serving/testing/fake_model_runner.h"
#include "serving/tokenizer/tokenizer_files.h"

namespace espalier {

using Json = nlohmann::ordered_json;

constexpr char kThinking[] =
    "{% for m in messages %}{{ m.role }}:{{ m.reasoning_content }}{{ m.content }}\n{% endfor %}"
    "{{ tools | length if tools else '' }}[TOOL_CALLS]a:{{ '[ARGS]'[:0] }}"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}";
constexpr char kBegunThinking[] =
    "{% for m in messages %}{{ m.content }}\n{% endfor %}{{ '</think>'[:0] }}<think>\n";

// A tokenizer of single ASCII characters, plus what a test adds. `pattern`: an optional
// pre-tokenizer regex.
inline std::string TokenizerText(const std::string& pattern) {
  Json vocabulary = Json::object();
  for (char c = '!'; c <= '~'; ++c) vocabulary[std::string(1, c)] = vocabulary.size();
  vocabulary["\u0120"] = vocabulary.size();  // space
  vocabulary["\u010a"] = vocabulary.size();  // newline
  Json added = Json::array();
  for (const auto& [content, special] : {std::pair{"<think>", false},
                                         {"</think>", false},
                                         {"[TOOL_CALLS]", true},
                                         {"[ARGS]", true},
                                         {"[THINK]", true},
                                         {"[/THINK]", true},
                                         {"<eos>", true}}) {
    added.push_back({{"id", vocabulary.size() + added.size()},
                     {"content", content},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", special}});
  }
  const Json level = {{"type", "ByteLevel"},
                      {"add_prefix_space", false},
                      {"trim_offsets", false},
                      {"use_regex", false}};
  Json cut = level;
  if (!pattern.empty()) {
    const Json split = {{"type", "Split"},
                        {"pattern", {{"Regex", pattern}}},
                        {"behavior", "Isolated"},
                        {"invert", false}};
    cut = {{"type", "Sequence"}, {"pretokenizers", {split, level}}};
  }
  return Json{{"added_tokens", added},
              {"pre_tokenizer", cut},
              {"decoder", level},
              {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", Json::array()}}}}
      .dump();
}

struct Said {
  std::string text, reasoning, reason;
  std::string order;  // text and calls in their order
  int replies = 0;    // with content
  std::vector<v1::ToolCall> calls;
  v1::Usage usage;
  absl::Status error;
};

class ChatAnswerTest : public testing::Test {
 protected:
  void Serve(const std::string& chat_template, const std::string& pattern = "") {
    TokenizerFiles files;
    files.tokenizer_json = TokenizerText(pattern);
    files.tokenizer_config_json =
        Json{{"eos_token", "<eos>"}, {"chat_template", chat_template}}.dump();
    auto tokenizer = LoadTokenizer(files);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    tokenizer_ = *tokenizer;
    EngineParts parts;
    parts.tokenizer = tokenizer_;
    parts.chat = *ChatTemplate::Create(*ReadTokenizerConfig(files));
    const int vocabulary = tokenizer_->vocabulary();
    parts.llm = std::make_unique<FakeModelRunner>(
        FakeModelRunner::LargeLimits(vocabulary), [this, vocabulary](absl::Span<const int> path) {
          std::vector<float> logits(static_cast<size_t>(vocabulary), 0);
          // If a grammar forbids the scripted token, the last allowed one is taken.
          for (int i = 0; i < vocabulary; ++i) logits[static_cast<size_t>(i)] = 0.001f * i;
          const size_t at = path.size() - prompt_;
          const int next = path.size() < prompt_ ? 0
                           : at < script_.size() ? script_[at]
                                                 : tokenizer_->eos()[0];
          logits[static_cast<size_t>(next)] = 5;
          return logits;
        });
    model_ = std::make_shared<LoadedModel>();
    EngineOptions options;
    options.max_requests = 4;
    auto engine = AsyncEngine::Create(std::move(parts), options);
    ASSERT_TRUE(engine.ok()) << engine.status();
    model_->engine = *std::move(engine);
    model_->grammars = std::make_unique<GrammarCache>(tokenizer_);
    model_->clock = &clock_;
  }

  static v1::GenerateRequest Ask(const std::string& content = "hi") {
    v1::GenerateRequest request;
    v1::ChatTurn* turn = request.mutable_chat()->add_turns();
    turn->set_role("user");
    turn->set_content(content);
    return request;
  }
  static void AddTool(v1::GenerateRequest* request) {
    request->mutable_chat()->add_tools(
        R"({"type": "function", "function": {"name": "f", "parameters": {"type": "object",
            "properties": {"a": {"type": "integer"}}, "required": ["a"]}}})");
  }

  Said Say(const v1::GenerateRequest& request, const std::string& answer) {
    Said said;
    auto prompt = PromptOf(request, *model_);
    if (prompt.ok()) prompt_ = prompt->tokens.size();
    script_ = *tokenizer_->TryEncode(answer, {.parse_special = true});
    absl::Notification done;
    auto generation = StartGeneration(
        request, model_, &models_, nullptr,
        [&](const absl::StatusOr<v1::GenerateReply>& reply, bool last) {
          if (!reply.ok()) {
            said.error = reply.status();
          } else {
            said.text += reply->text();
            said.reasoning += reply->reasoning();
            if (!reply->text().empty() || !reply->tool_calls().empty()) ++said.replies;
            size_t at = 0;
            for (const v1::ToolCall& call : reply->tool_calls()) {
              const size_t before = static_cast<size_t>(call.text_before());
              said.order += reply->text().substr(at, before - at) + call.name() + call.arguments();
              at = before;
              if (call.index() == static_cast<int>(said.calls.size())) {
                said.calls.push_back(call);
              } else {
                said.calls.back().mutable_arguments()->append(call.arguments());
              }
            }
            said.order += reply->text().substr(at);
            if (!reply->finish_reason().empty()) said.reason = reply->finish_reason();
            if (last) said.usage = reply->usage();
          }
          if (last) done.Notify();
        });
    if (!generation.ok()) {
      said.error = generation.status();
      return said;
    }
    done.WaitForNotification();
    return said;
  }

  FakeClock clock_;
  ModelServer models_{{}};
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::shared_ptr<LoadedModel> model_;
  size_t prompt_ = 0;
  std::vector<int> script_;
};

}  // namespace espalier
