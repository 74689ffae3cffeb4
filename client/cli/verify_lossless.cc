#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cli/command.h"
#include "client/cli/interrupt.h"
#include "client/cli/proto_json.h"
#include "client/cli/serving_flags.h"
#include "client/cli/transfer.h"
#include "client/terminal/progress.h"
#include "client/terminal/table.h"

namespace espalier {
namespace {

// Explains what a check compares.
std::string Meaning(const std::string& check) {
  if (check == "greedy") return "greedy answers = incremental decoding";
  if (check == "seeds") return "sampled answers of a seed = incremental decoding";
  if (check == "penalties") return "penalized answers = incremental decoding";
  if (check == "enumeration")
    return "every outcome of verification, weighted = the LLM's distribution";
  if (check == "distribution") return "sampled answers have the LLM's distribution";
  if (check == "KV") return "KV cache of accepted drafts = a fresh computation";
  return "";
}

// Reads a JSON list of texts, as FlexFlow's -prompt.
absl::Status AddPromptsOfFile(const std::string& path, v1::VerifyLosslessRequest* request) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  const auto list = nlohmann::json::parse(text.str(), nullptr, false);
  bool good = in && list.is_array() && !list.empty();
  for (size_t i = 0; good && i < list.size(); ++i) {
    good = list[i].is_string();
    if (good) request->add_prompts(list[i].get<std::string>());
  }
  if (good) return absl::OkStatus();
  return UsageError(absl::StrCat("--prompts-from: ", Printable(path),
                                 " is not a JSON list of texts, as [\"one\", \"two\"]"));
}

absl::StatusOr<v1::VerifyLosslessRequest> RequestOf(const ParsedFlags& flags) {
  v1::VerifyLosslessRequest request;
  if (!flags.Has("llm")) return UsageError("missing: --llm=ARTIFACT");
  if (!flags.Has("ssm") && !flags.Has("ngram") && !flags.Has("tune")) {
    return UsageError("missing: --ssm=ARTIFACT or --ngram=N, for something to verify");
  }
  request.mutable_models()->set_artifact(flags.Text("llm"));
  if (absl::Status s = FillServing(flags, request.mutable_models()); !s.ok()) return s;
  for (const std::string& prompt : flags.Values("prompt")) request.add_prompts(prompt);
  if (flags.Has("prompts-from")) {
    absl::Status status = AddPromptsOfFile(flags.Text("prompts-from"), &request);
    if (!status.ok()) return status;
  }
  const auto number = [&](const char* name) { return static_cast<int32_t>(flags.Int(name, 0)); };
  request.set_answer_tokens(number("answer-tokens"));
  request.set_draws(number("draws"));
  request.set_distribution_tokens(number("distribution-tokens"));
  request.set_distribution_top_k(number("distribution-top-k"));
  request.set_temperature(flags.Number("temperature", 0));
  return request;
}

std::string LosslessFigures(const v1::LosslessReport& report, bool unicode) {
  return absl::StrFormat(
      "%.2f drafted tokens accepted per step; the LLM's two best logits never came closer than "
      "%s; checked in %s",
      report.accepted_per_step(), FormatLoss(report.smallest_margin()),
      FormatSeconds(report.seconds(), unicode));
}

// Runs the proof, with temporary uploads of local models, without a time limit.
absl::StatusOr<v1::LosslessReport> Prove(Context& context, Client* client,
                                         v1::VerifyLosslessRequest request, Canceller* canceller) {
  TemporaryUploads uploads(&context, client, canceller);
  auto llm = uploads.Model(request.models().artifact());
  if (!llm.ok()) return llm.status();
  request.mutable_models()->set_artifact(*llm);
  for (std::string& ssm : *request.mutable_models()->mutable_ssm_artifacts()) {
    auto name = uploads.Model(ssm);
    if (!name.ok()) return name.status();
    ssm = *name;
  }

  ProgressPrinter printer(context.env().out, context.terminal(), context.env().seconds);
  const auto show = [&](const v1::LosslessProgress& now) {
    if (context.json()) return context.out().good();
    Progress p;
    p.unit = now.stage();
    p.done = static_cast<double>(now.done());
    p.total = static_cast<double>(now.total());
    printer.Update(p);
    return context.out().good();
  };
  auto report = client->VerifyLossless(request, show, canceller);
  if (!context.json()) printer.Finish();
  return report;
}

absl::Status RunVerifyLossless(Context& context) {
  if (absl::Status s = CheckArguments(context, 0, 0, ""); !s.ok()) return s;
  auto request = RequestOf(context.flags());
  if (!request.ok()) return request.status();
  auto client = context.client();
  if (!client.ok()) return client.status();
  Canceller canceller;
  const InterruptWatch watch([&] { canceller.Cancel(); });
  auto report = Prove(context, *client, *std::move(request), &canceller);
  if (!report.ok() && watch.interrupted()) {
    return InterruptedError("interrupted before the proof was complete");
  }
  if (!report.ok()) return report.status();

  std::vector<std::string> failed;
  for (const auto& check : report->checks()) {
    if (!check.passed()) failed.push_back(check.name());
  }
  if (context.json()) {
    context.Document(ToJson(*report));
  } else {
    const Style style = context.style();
    Table table(
        {{"check"}, {"that"}, {""}, {"cases", Align::kRight}, {"found", Align::kLeft, true}});
    for (const auto& check : report->checks()) {
      table.Row({Printable(check.name()), Meaning(check.name()),
                 check.passed() ? "passed" : "FAILED", absl::StrCat(check.cases()),
                 Printable(check.detail())});
    }
    context.out() << table.Render(context.terminal())
                  << LosslessFigures(*report, context.terminal().unicode) << "\n";
    // Print failures in full: the table truncates.
    for (const auto& check : report->checks()) {
      if (check.passed()) continue;
      context.out() << style.Red(absl::StrCat(Printable(check.name()), " failed: "))
                    << Printable(check.detail()) << "\n";
    }
    if (report->passed()) {
      context.out() << style.Green("speculation changes no answer of this pair") << "\n";
    }
    context.out() << std::flush;
  }
  if (report->passed()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("speculation is not lossless for these models; failed: ",
                                          absl::StrJoin(failed, ", ")));
}

}  // namespace

Command VerifyLosslessCommand() {
  Command c;
  c.name = "verify-lossless";
  c.summary = "verify that speculation changes no answer of a pair of models";
  c.usage = "verify-lossless --llm=MODEL --ssm=MODEL [--ssm=MODEL]... [flags]";
  c.description =
      "Runs on the coordinator, which loads the models in addition to those that it serves. A "
      "MODEL is\nan artifact, or a local folder or GGUF file (with a / in its name or ending in "
      ".gguf), which is\nuploaded temporarily and deleted even after Ctrl-C. Fails, with exit "
      "code 1, if a check does.";
  c.flags = {
      {"llm", FlagType::kText, "MODEL", "the large model"},
      {"prompt", FlagType::kText, "TEXT", "a prompt (built-in ones)", 0, 0, 0, true},
      {"prompts-from", FlagType::kText, "FILE", "a JSON list of prompts"},
      {"answer-tokens", FlagType::kInt, "N", "tokens per greedy and seeded answer (48)", 0, 3,
       1 << 20},
      {"draws", FlagType::kInt, "N", "answers of the distribution test (20000)", 0, 1000, 1 << 26},
      {"distribution-tokens", FlagType::kInt, "N", "tokens per answer of the distribution test (3)",
       0, 1, 4},
      {"distribution-top-k", FlagType::kInt, "N", "top-k of the distribution test (3)", 0, 2, 5},
      {"temperature", FlagType::kNumber, "T", "temperature of the sampled checks (1)", 0, 0.01, 2}};
  const std::vector<FlagSpec> serving = ServingFlags();
  c.flags.insert(c.flags.begin() + 1, serving.begin(), serving.end());
  c.examples = {
      {"a served pair", "espalier verify-lossless --llm=llm --ssm=ssm --expansion=1,1,3,1,1"},
      {"local folders, int8 weights, for a CI job",
       "espalier verify-lossless --llm=./llama --ssm=./tiny --weights=int8 --json"},
      {"drafts without a model", "espalier verify-lossless --llm=llm --ngram=8"}};
  c.run = RunVerifyLossless;
  return c;
}

}  // namespace espalier
