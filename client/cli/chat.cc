// A conversation with a served model, using its chat template.
#include <istream>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/command.h"
#include "client/cli/proto_json.h"
#include "client/cli/sampling_flags.h"
#include "client/terminal/table.h"

namespace espalier {
namespace {

using Json = nlohmann::ordered_json;

struct Answer {
  std::string text;
  std::string reasoning;
  std::string finish_reason;
  v1::Usage usage;
};

class Conversation {
 public:
  Conversation(Context& context, Client* client, v1::GenerateRequest request)
      : context_(context), client_(client), request_(std::move(request)) {}

  // Reads standard input line by line until it ends.
  absl::Status Run() {
    std::ostream& out = context_.out();
    const bool prompts = !context_.json() && context_.terminal().is_tty;
    if (prompts) out << context_.style().Dim("/clear starts over, /exit or end of input quits");
    for (std::string line; out.good();) {
      if (prompts) out << "\n" << context_.style().Bold("> ") << std::flush;
      if (!std::getline(*context_.env().in, line)) break;
      const absl::string_view said = absl::StripAsciiWhitespace(line);
      if (said == "/exit") break;
      if (said == "/clear") {
        Clear();
      } else if (absl::StartsWith(said, "/") && !absl::StrContains(said, ' ')) {
        *context_.env().err << "unknown command; known: /clear, /exit\n";
      } else if (!said.empty()) {
        absl::Status status = Say(std::string(said));
        if (status.ok()) continue;
        // An interactive user can send something shorter or start again.
        if (!prompts || absl::IsUnavailable(status)) return status;
        *context_.env().err << "\n" << Printable(status.message()) << "\n";
      }
    }
    if (prompts) out << std::endl;
    return absl::OkStatus();
  }

  absl::Status Say(const std::string& message) {
    v1::ChatPrompt* chat = request_.mutable_chat();
    v1::ChatTurn* turn = chat->add_turns();
    turn->set_role("user");
    turn->set_content(message);
    Answer answer;
    absl::Status status = Stream(&answer);
    if (!status.ok()) {
      chat->mutable_turns()->RemoveLast();
      return status;
    }
    Show(answer);
    turn = chat->add_turns();
    turn->set_role("assistant");
    turn->set_content(answer.text);
    turn->set_reasoning(answer.reasoning);
    return absl::OkStatus();
  }

 private:
  // Keeps the system message.
  void Clear() {
    auto* turns = request_.mutable_chat()->mutable_turns();
    const bool system = !turns->empty() && turns->Get(0).role() == "system";
    turns->DeleteSubrange(system, turns->size() - system);
  }

  absl::Status Stream(Answer* answer) {
    std::ostream& out = context_.out();
    bool thinking = false;
    return client_->Generate(request_, [&](const v1::GenerateReply& reply) {
      answer->text += reply.text();
      answer->reasoning += reply.reasoning();
      if (!reply.finish_reason().empty()) answer->finish_reason = reply.finish_reason();
      if (reply.has_usage()) answer->usage = reply.usage();
      if (context_.json()) {
        Json line;
        if (!reply.reasoning().empty()) line["reasoning"] = reply.reasoning();
        if (!reply.text().empty()) line["text"] = reply.text();
        if (!line.empty()) context_.Line(line);
        return out.good();
      }
      if (!reply.reasoning().empty()) {
        out << context_.style().Dim(Printable(reply.reasoning(), true));
        thinking = true;
      }
      if (!reply.text().empty()) {
        if (std::exchange(thinking, false)) out << "\n\n";
        out << Printable(reply.text(), true);
      }
      out << std::flush;
      return out.good();
    });
  }

  void Show(const Answer& answer) {
    if (context_.json()) {
      Json done;
      done["text"] = answer.text;
      if (!answer.reasoning.empty()) done["reasoning"] = answer.reasoning;
      done["finish_reason"] = answer.finish_reason;
      done["usage"] = ToJson(answer.usage);
      Json line;
      line["done"] = std::move(done);
      context_.Line(line);
      return;
    }
    std::ostream& out = context_.out();
    out << "\n";
    if (answer.finish_reason == "length") {
      out << context_.style().Dim("(cut off: its tokens or the context are used up)") << "\n";
    }
    if (!context_.flags().Has("stats")) return;
    const double seconds = answer.usage.seconds();
    out << context_.style().Dim(absl::StrCat(answer.usage.prompt_tokens(), " tokens of prompt (",
                                             answer.usage.cached_tokens(), " cached), ",
                                             answer.usage.completion_tokens(), " tokens in ",
                                             FormatSeconds(seconds, context_.terminal().unicode)))
        << "\n";
  }

  Context& context_;
  Client* const client_;
  v1::GenerateRequest request_;
};

absl::Status RunChat(Context& context) {
  const ParsedFlags& flags = context.flags();
  const auto& args = flags.positional();
  if (args.empty()) return UsageError("missing: a model's name (espalier serve lists them)");
  v1::GenerateRequest request;
  request.set_model(args[0]);
  request.set_adapter(flags.Text("adapter"));
  request.set_max_tokens(static_cast<int32_t>(flags.Int("max-tokens", 0)));
  if (absl::Status status = FillSampling(flags, &request); !status.ok()) return status;
  v1::ChatPrompt* chat = request.mutable_chat();
  chat->set_reasoning_effort(flags.Text("reasoning-effort"));
  if (flags.Has("thinking-budget")) {
    chat->set_thinking_token_budget(static_cast<int32_t>(flags.Int("thinking-budget", 0)));
  }
  if (flags.Has("system")) {
    v1::ChatTurn* turn = chat->add_turns();
    turn->set_role("system");
    turn->set_content(flags.Text("system"));
  }
  auto client = context.client();
  if (!client.ok()) return client.status();
  Conversation conversation(context, *client, std::move(request));
  if (args.size() == 1) return conversation.Run();
  return conversation.Say(absl::StrJoin(args.begin() + 1, args.end(), " "));
}

}  // namespace

Command ChatCommand() {
  Command c;
  c.name = "chat";
  c.summary = "chat with a model, using its chat template";
  c.usage = "chat MODEL [MESSAGE] [flags]";
  c.description =
      "Without a message, each line of standard input is a message of one conversation.";
  c.flags = {
      {"system", FlagType::kText, "TEXT", "system message"},
      {"reasoning-effort", FlagType::kText, "HOW",
       "reasoning effort, for models that support it: none, minimal, low, medium, high ..."},
      {"thinking-budget", FlagType::kInt, "N",
       "maximum reasoning tokens before the answer (no limit)", 0, 0, 1 << 20},
      {"adapter", FlagType::kText, "NAME", "a LoRA adapter of the model (none)"},
      {"max-tokens", FlagType::kInt, "N", "maximum answer length (the rest of the context)", 0, 1,
       1 << 20},
      {"stats", FlagType::kSwitch, "", "show tokens and time after each answer"},
  };
  const std::vector<FlagSpec> sampling = SamplingFlags();
  c.flags.insert(c.flags.end(), sampling.begin(), sampling.end());
  c.examples = {{"a conversation", "espalier chat llm"},
                {"one question", "espalier chat llm \"Who was Noah?\" --temperature=0.7"},
                {"questions from a file", "espalier chat llm --json < questions.txt"}};
  c.run = RunChat;
  return c;
}

}  // namespace espalier
