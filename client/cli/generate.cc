#include <algorithm>
#include <istream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cli/command.h"
#include "client/cli/generation.h"
#include "client/cli/proto_json.h"
#include "client/cli/sampling_flags.h"
#include "client/terminal/table.h"

namespace espalier {
namespace {

using Json = nlohmann::ordered_json;

absl::StatusOr<std::string> Prompt(Context& context) {
  const auto& args = context.flags().positional();
  if (args.empty()) return UsageError("missing: a model's name (espalier serve lists them)");
  std::string prompt = context.flags().Text("prompt");
  if (args.size() > 1) {
    if (context.flags().Has("prompt")) return UsageError("give the prompt once");
    prompt = absl::StrJoin(args.begin() + 1, args.end(), " ");
  }
  if (prompt == "-") {
    prompt.assign(std::istreambuf_iterator<char>(*context.env().in),
                  std::istreambuf_iterator<char>());
  }
  if (prompt.empty()) return UsageError("missing: a prompt, or - for the standard input");
  return prompt;
}

absl::StatusOr<v1::GenerateRequest> Request(Context& context) {
  const ParsedFlags& flags = context.flags();
  auto prompt = Prompt(context);
  if (!prompt.ok()) return prompt.status();
  v1::GenerateRequest request;
  request.set_model(flags.positional()[0]);
  request.set_adapter(flags.Text("adapter"));
  request.set_text(*prompt);
  request.set_max_tokens(static_cast<int32_t>(flags.Int("max-tokens", 128)));
  if (absl::Status status = FillSampling(flags, &request); !status.ok()) return status;
  const std::string trees = flags.Text("speculation", "default");
  if (trees == "on") {
    request.set_speculation(v1::SPECULATION_ON);
  } else if (trees == "off") {
    request.set_speculation(v1::SPECULATION_OFF);
  } else if (trees != "default") {
    return UsageError(
        absl::StrCat("--speculation is \"", Printable(trees), "\"; accepted: on, off, default"));
  }
  return request;
}

absl::StatusOr<Generation> Generate(Context& context, const v1::GenerateRequest& request,
                                    const PieceListener& piece) {
  if (context.flags().Has("http")) {
    auto gateway = context.gateway();
    if (!gateway.ok()) return gateway.status();
    return GenerateByHttp(**gateway, request, context.env().seconds, piece);
  }
  auto client = context.client();
  if (!client.ok()) return client.status();
  return GenerateByGrpc(*client, request, context.env().seconds, piece);
}

Json GenerationFigures(const Generation& g) {
  Json json;
  json["text"] = g.text;
  json["finish_reason"] = g.finish_reason;
  json["usage"] = ToJson(g.usage);
  json["seconds"] = g.seconds;
  json["seconds_to_first_token"] = g.seconds_to_first;
  json["tokens_per_second"] = g.tokens_per_second();
  json["tokens_per_verification"] = g.tokens_per_verification();
  json["accepted_per_verification"] = g.accepted_per_verification();
  return json;
}

std::string Trees(const Generation& g) {
  if (g.usage.drafted_tokens() == 0) return "";
  return absl::StrFormat(", %.2f drafted tokens accepted per verification (%d of %d in %d steps)",
                         g.accepted_per_verification(), g.usage.accepted_tokens(),
                         g.usage.drafted_tokens(), g.usage.verification_steps());
}

absl::Status Once(Context& context, const v1::GenerateRequest& request) {
  std::ostream& out = context.out();
  bool started = false;
  auto answer = Generate(context, request, [&](const std::string& text) {
    if (context.json()) {
      Json line;
      line["text"] = text;
      context.Line(line);
      return out.good();
    }
    if (!started) out << context.style().Dim(Printable(request.text(), true));
    started = true;
    out << Printable(text, true) << std::flush;
    return out.good();
  });
  if (!answer.ok()) {
    if (started) out << std::endl;
    return answer.status();
  }
  const auto warn = [&] {
    if (answer->warning.empty()) return;
    *context.env().err << "espalier: warning: " << Printable(answer->warning) << std::endl;
  };
  if (context.json()) {
    Json line;
    line["done"] = GenerationFigures(*answer);
    context.Line(line);
    warn();
    return absl::OkStatus();
  }
  out << "\n\n"
      << context.style().Dim(
             absl::StrCat(answer->usage.completion_tokens(), " tokens, ",
                          FormatCount(answer->tokens_per_second()), " tokens/s, first after ",
                          FormatSeconds(answer->seconds_to_first, context.terminal().unicode),
                          Trees(*answer), ", ended by ", Printable(answer->finish_reason)))
      << std::endl;
  warn();
  return absl::OkStatus();
}

// Runs the prompt with incremental decoding and with token trees, and compares text and time.
absl::Status Compare(Context& context, v1::GenerateRequest request) {
  if (request.sampling().temperature() > 0) {
    return UsageError(
        "--compare needs greedy decoding (--temperature=0): two samples differ by chance");
  }
  request.mutable_sampling()->set_temperature(0);
  std::ostream& out = context.out();
  const Style style = context.style();
  Generation answers[2];
  const v1::Speculation modes[2] = {v1::SPECULATION_OFF, v1::SPECULATION_ON};
  const char* titles[2] = {"incremental", "token trees"};
  // Warm up both: the first requests after loading prepare kernels.
  v1::GenerateRequest warm_up = request;
  warm_up.set_max_tokens(std::min(request.max_tokens(), 8));
  for (const v1::Speculation mode : modes) {
    warm_up.set_speculation(mode);
    auto s = Generate(context, warm_up, [](const std::string&) { return true; });
    if (!s.ok()) return s.status();
  }
  for (int i = 0; i < 2; ++i) {
    request.set_speculation(modes[i]);
    if (!context.json())
      out << style.Bold(titles[i]) << "\n"
          << style.Dim(Printable(request.text(), true)) << std::flush;
    auto answer = Generate(context, request, [&](const std::string& text) {
      if (!context.json()) out << Printable(text, true) << std::flush;
      return out.good();
    });
    if (!answer.ok() || !out.good()) return answer.status();
    answers[i] = *std::move(answer);
    if (!context.json()) out << "\n\n" << std::flush;
  }
  const bool same =
      answers[0].text == answers[1].text && answers[0].finish_reason == answers[1].finish_reason;
  const double speedup = answers[0].tokens_per_second() > 0
                             ? answers[1].tokens_per_second() / answers[0].tokens_per_second()
                             : 0;
  if (context.json()) {
    Json json;
    json["identical"] = same;
    json["incremental"] = GenerationFigures(answers[0]);
    json["trees"] = GenerationFigures(answers[1]);
    json["speedup"] = speedup;
    context.Document(json);
  } else {
    Table table({{""},
                 {"tokens", Align::kRight},
                 {"tokens/s", Align::kRight},
                 {"first token", Align::kRight},
                 {"LLM steps", Align::kRight},
                 {"accepted per verification", Align::kRight}});
    for (int i = 0; i < 2; ++i) {
      const Generation& g = answers[i];
      table.Row({titles[i], absl::StrCat(g.usage.completion_tokens()),
                 absl::StrFormat("%.1f", g.tokens_per_second()),
                 FormatSeconds(g.seconds_to_first, context.terminal().unicode),
                 absl::StrCat(g.usage.verification_steps()),
                 i == 0 ? "" : absl::StrFormat("%.2f + 1", g.accepted_per_verification())});
    }
    out << table.Render(context.terminal())
        << (same ? style.Green("the texts are identical") : style.Red("the texts differ"))
        << absl::StrFormat("; token trees are %.2f times as fast", speedup) << std::endl;
  }
  if (same) return absl::OkStatus();
  size_t at = 0;
  while (at < answers[0].text.size() && at < answers[1].text.size() &&
         answers[0].text[at] == answers[1].text[at])
    ++at;
  return absl::InternalError(
      absl::StrCat("greedy decoding with token trees differs from incremental decoding from byte ",
                   at, " on; please report this with the models and the prompt"));
}

absl::Status RunGenerate(Context& context) {
  auto request = Request(context);
  if (!request.ok()) return request.status();
  if (context.flags().Has("compare")) {
    if (context.flags().Has("speculation"))
      return UsageError("--compare runs both; leave --speculation out");
    return Compare(context, *request);
  }
  return Once(context, *request);
}

}  // namespace

Command GenerateCommand() {
  Command c;
  c.name = "generate";
  c.summary = "continue a prompt, streaming";
  c.usage = "generate MODEL PROMPT|- [flags]";
  c.flags = {
      {"prompt", FlagType::kText, "TEXT", "the prompt, instead of arguments"},
      {"adapter", FlagType::kText, "NAME", "a LoRA adapter of the model (none)"},
      {"max-tokens", FlagType::kInt, "N", "maximum answer length (128)", 0, 1, 1 << 20},
      {"speculation", FlagType::kText, "MODE",
       "token trees: on, off, default (on if there are SSMs)"},
      {"compare", FlagType::kSwitch, "",
       "run with and without speculation, and show both times; "
       "fails if the texts differ"},
      {"http", FlagType::kSwitch, "", "use the OpenAI API instead of gRPC"},
  };
  const std::vector<FlagSpec> sampling = SamplingFlags();
  c.flags.insert(c.flags.end() - 3, sampling.begin(), sampling.end());
  c.examples = {{"continue a text", "espalier generate llm \"In the beginning\" --max-tokens=200"},
                {"measure the speedup of token trees",
                 "espalier generate llm \"And it came to pass\" --compare"},
                {"sample", "espalier generate llm --temperature=0.8 --top-p=0.95 --seed=1 \"Now\""},
                {"structured output", "espalier generate llm --json-schema=@person.json \"Who?\""},
                {"over HTTP, from a file", "espalier generate llm - --http < prompt.txt"}};
  c.run = RunGenerate;
  return c;
}

}  // namespace espalier
