#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "client/cli/command.h"
#include "client/cli/model_flags.h"
#include "client/cli/optimizer_flags.h"
#include "client/cli/proto_json.h"
#include "client/cli/serving_flags.h"
#include "client/cli/transfer.h"
#include "client/terminal/progress.h"
#include "client/terminal/table.h"
#include "proto/states.h"

namespace espalier {
namespace {

constexpr absl::Duration kPoll = absl::Milliseconds(200);
// A restarted coordinator continues the job.
constexpr absl::Duration kReconnectTimeout = absl::Minutes(2);

std::string Figure(bool there, const v1::DraftStatistics& measure) {
  return there ? absl::StrFormat("%.2f", measure.tokens_per_verification()) : "";
}

std::string StartedFrom(const v1::DistillationStart& start) {
  return start.artifact().empty() ? "random" : Printable(start.artifact());
}

// Shows the results so far.
void ShowDistillationJob(Context& context, const v1::DistillationJob& job) {
  if (context.json()) {
    context.Document(ToJson(job));
    return;
  }
  context.out() << Printable(job.id()) << " is " << StateName(job.state()) << ": " << job.prompts()
                << " prompts, " << job.samples() << " samples, " << job.held_out()
                << " prompts held out\n";
  Table table({{"model", Align::kLeft, true},
               {"started from", Align::kLeft, true},
               {"trained on", Align::kRight},
               {"learned", Align::kRight},
               {"tokens/verification before", Align::kRight},
               {"after", Align::kRight}});
  for (int k = 0; k < std::min(job.ssms_size(), job.spec().ssms_size()); ++k) {
    const v1::DistilledSsm& ssm = job.ssms(k);
    table.Row({Printable(ssm.output()), StartedFrom(job.spec().ssms(k)),
               ssm.skipped() ? "none left" : absl::StrCat(ssm.samples()),
               ssm.scored() ? absl::StrCat(ssm.learned()) : "",
               Figure(ssm.has_before(), ssm.before()), Figure(ssm.has_after(), ssm.after())});
  }
  if (job.ssms_size() > 1) {
    table.Row({"their trees, merged", "", "", "", Figure(job.has_before(), job.before()),
               Figure(job.has_after(), job.after())});
  }
  context.out() << table.Render(context.terminal());
  if (job.state() == v1::DISTILLATION_SUCCEEDED) {
    context.out() << "use them: espalier serve " << Printable(job.spec().llm());
    for (const v1::DistilledSsm& ssm : job.ssms()) {
      if (!ssm.skipped()) context.out() << " --ssm=" << Printable(ssm.output());
    }
    context.out() << "\n";
  }
  context.out() << std::flush;
}

// Follows the job to its end, across restarts of the coordinator.
absl::Status Watch(Context& context, Client* client, const std::string& id) {
  ProgressPrinter printer(context.env().out, context.terminal(), context.env().seconds);
  v1::DistillationJob job;
  absl::Time seen = absl::Now();
  while (true) {
    absl::StatusOr<v1::DistillationJob> now = client->GetDistillation(id);
    if (now.ok()) {
      seen = absl::Now();
      job = *std::move(now);
      if (IsOver(job.state())) break;
      if (!context.json()) {
        Progress p;
        p.unit = Printable(job.stage().empty() ? StateName(job.state()) : job.stage());
        p.done = static_cast<double>(job.done());
        p.total = static_cast<double>(job.total());
        printer.Update(p);
      }
    } else if (!absl::IsUnavailable(now.status()) || absl::Now() - seen > kReconnectTimeout) {
      return now.status();
    }
    if (!context.out().good()) return absl::OkStatus();
    absl::SleepFor(kPoll);
  }
  if (!context.json()) printer.Finish();
  ShowDistillationJob(context, job);
  if (job.state() == v1::DISTILLATION_SUCCEEDED) return absl::OkStatus();
  return absl::AbortedError(
      absl::StrCat(Printable(job.id()), " ", StateName(job.state()),
                   job.error().empty() ? "" : ": ", Printable(job.error(), true),
                   "; espalier boost-tune --resume=", Printable(job.id()), " continues it"));
}

absl::Status ListDistillationJobs(Context& context, Client* client) {
  auto jobs = client->ListDistillations();
  if (!jobs.ok()) return jobs.status();
  if (context.json()) {
    nlohmann::ordered_json json;
    json["jobs"] = nlohmann::ordered_json::array();
    for (const v1::DistillationJob& job : *jobs) json["jobs"].push_back(ToJson(job));
    context.Document(json);
    return absl::OkStatus();
  }
  Table table({{"job"},
               {"name", Align::kLeft, true},
               {"LLM"},
               {"SSMs", Align::kRight},
               {"state"},
               {"error", Align::kLeft, true}});
  for (const v1::DistillationJob& job : *jobs) {
    table.Row({Printable(job.id()), Printable(job.spec().name()), Printable(job.spec().llm()),
               absl::StrCat(job.ssms_size()), StateName(job.state()), Printable(job.error())});
  }
  context.out() << (table.empty() ? "no boost-tuning jobs yet\n" : table.Render(context.terminal()))
                << std::flush;
  return absl::OkStatus();
}

absl::Status AddStarts(const ParsedFlags& flags, v1::DistillationSpec* spec) {
  for (const std::string& artifact : flags.Values("ssm")) spec->add_ssms()->set_artifact(artifact);
  for (const std::string& model : flags.Values("model")) {
    absl::StatusOr<std::string> config = ModelConfig(model, 1);
    if (!config.ok()) return config.status();
    spec->add_ssms()->set_config(*config);
  }
  if (spec->ssms_size() > 0) return absl::OkStatus();
  return UsageError(
      "which SSMs? Give --ssm=ARTIFACT, or --model=llama:ssm for a randomly initialized one; "
      "both may be repeated");
}

absl::StatusOr<v1::DistillationSpec> SpecOf(const ParsedFlags& flags) {
  v1::DistillationSpec spec;
  spec.set_llm(flags.positional()[0]);
  spec.set_name(flags.Text("name", absl::StrCat(spec.llm(), "-boost")));
  spec.set_weights(flags.Text("weights"));
  if (absl::Status s = AddStarts(flags, &spec); !s.ok()) return s;
  const auto number = [&](const char* name) { return static_cast<int32_t>(flags.Int(name, 0)); };
  spec.set_prompt_tokens(number("prompt-tokens"));
  spec.set_max_prompts(number("max-prompts"));
  spec.set_holdout_fraction(flags.Number("holdout", 0));
  spec.set_continuation_tokens(number("continuation-tokens"));
  spec.set_sample_tokens(number("sample-tokens"));
  spec.set_temperature(flags.Number("temperature", 0));
  spec.set_soft_labels(number("soft-labels"));
  spec.set_seed(static_cast<uint64_t>(flags.Int("seed", 0)));
  if (flags.Has("epochs") && flags.Has("steps")) {
    return UsageError("give --epochs or --steps, not both");
  }
  spec.set_epochs(flags.Int("epochs", 0));
  spec.set_steps(flags.Int("steps", 0));
  spec.set_batch_size(flags.Int("batch-size", 0));
  spec.set_checkpoint_every_steps(flags.Int("checkpoint-every", 0));
  if (absl::Status s = FillOptimizer(flags, spec.steps(), spec.mutable_optimizer()); !s.ok()) {
    return s;
  }
  absl::StatusOr<std::vector<int>> expansion = ParseExpansion(flags.Text("expansion"));
  if (!expansion.ok()) return expansion.status();
  spec.mutable_expansion()->Assign(expansion->begin(), expansion->end());
  return spec;
}

// Sets spec.prompts, after an upload if needed.
absl::Status FillPrompts(Context& context, Client* client, v1::DistillationSpec* spec) {
  const ParsedFlags& flags = context.flags();
  if (flags.Has("prompts") == flags.Has("dataset")) {
    return UsageError(
        "which prompts? Give --prompts=FILE, a JSON list of texts, or --dataset=FILE, "
        "a text of which pieces are taken");
  }
  spec->set_prompt_format(flags.Has("prompts") ? v1::DistillationSpec::LIST
                                               : v1::DistillationSpec::TEXT);
  absl::string_view given =
      flags.Has("prompts") ? flags.Values("prompts").back() : flags.Values("dataset").back();
  if (absl::ConsumePrefix(&given, "artifact:")) {
    spec->set_prompts(std::string(given));
    return absl::OkStatus();
  }
  auto name =
      UploadOnce(context, client)(SingleLocalFile(std::string(given)), v1::Artifact::DATASET);
  if (!name.ok()) return name.status();
  spec->set_prompts(*name);
  return absl::OkStatus();
}

absl::Status Submit(Context& context, Client* client, v1::DistillationSpec spec) {
  const bool detach = context.flags().Has("detach");
  if (absl::Status s = FillPrompts(context, client, &spec); !s.ok()) return s;
  auto job = client->SubmitDistillation(spec);
  if (!job.ok()) return job.status();
  if (detach && context.json()) {
    context.Document(ToJson(*job));
    return absl::OkStatus();
  }
  if (!context.json()) {
    context.out() << "submitted " << context.style().Bold(Printable(job->id()))
                  << (detach ? "" : "; Ctrl-C leaves it running") << "\n";
    if (detach) {
      context.out() << "watch it: espalier boost-tune --watch=" << Printable(job->id()) << "\n"
                    << "stop it:  espalier boost-tune --cancel=" << Printable(job->id()) << "\n";
    }
    context.out().flush();
  }
  return detach ? absl::OkStatus() : Watch(context, client, job->id());
}

absl::Status RunBoostTune(Context& context) {
  const ParsedFlags& flags = context.flags();
  const int other =
      flags.Has("list") + flags.Has("watch") + flags.Has("cancel") + flags.Has("resume");
  if (other > 1) return UsageError("give one of --list, --watch, --cancel, --resume");
  if (absl::Status s = CheckArguments(context, other == 0 ? 1 : 0, other == 0 ? 1 : 0,
                                      other == 0 ? "the LLM's artifact" : "");
      !s.ok()) {
    return s;
  }
  // Check everything that can be checked locally before the first upload.
  absl::StatusOr<v1::DistillationSpec> spec = v1::DistillationSpec();
  if (other == 0) spec = SpecOf(flags);
  if (!spec.ok()) return spec.status();
  auto client = context.client();
  if (!client.ok()) return client.status();
  if (flags.Has("list")) return ListDistillationJobs(context, *client);
  if (flags.Has("watch")) return Watch(context, *client, flags.Text("watch"));
  if (flags.Has("cancel")) {
    auto job = (*client)->CancelDistillation(flags.Text("cancel"));
    if (job.ok()) ShowDistillationJob(context, *job);
    return job.status();
  }
  if (flags.Has("resume")) {
    auto job = (*client)->ResumeDistillation(flags.Text("resume"));
    if (!job.ok()) return job.status();
    return Watch(context, *client, job->id());
  }
  return Submit(context, *client, *std::move(spec));
}

}  // namespace

Command BoostTuneCommand() {
  Command c;
  c.name = "boost-tune";
  c.summary = "distill an LLM into small models, so that it accepts more of their drafts";
  c.usage =
      "boost-tune LLM --ssm=ARTIFACT|--model=MODEL [...] --prompts=FILE|--dataset=FILE [flags]";
  c.description =
      "The LLM continues the prompts. The first SSM is trained on all continuations, the next "
      "one on\nthe samples that the first does not fully predict, and so on (boosting): their "
      "merged trees\ncover more. Tokens per LLM step are measured on held-out prompts. The "
      "coordinator keeps all\nstate: an interrupted job continues where it stopped. The "
      "resulting models, first those of\n--ssm, then those of --model, are LLM-boost-1, "
      "LLM-boost-2, ... (see --name).";
  c.flags = {
      {"ssm", FlagType::kText, "ARTIFACT", "a small model to start from", 0, 0, 0, true},
      {"model", FlagType::kText, "MODEL",
       "a randomly initialized model: llama:ssm or a config.json, as for train", 0, 0, 0, true},
      {"prompts", FlagType::kText, "FILE", "a JSON list of texts, or artifact:NAME"},
      {"dataset", FlagType::kText, "FILE",
       "take pieces of this text as prompts instead; or artifact:NAME", 'd'},
      {"prompt-tokens", FlagType::kInt, "N",
       "maximum prompt length; longer prompts lose their first tokens (32)", 0, 1, 65536},
      {"max-prompts", FlagType::kInt, "N", "maximum number of prompts (512)", 0, 2, 131072},
      {"continuation-tokens", FlagType::kInt, "N", "tokens that the LLM generates per prompt (32)",
       0, 1, 65536},
      {"sample-tokens", FlagType::kInt, "N",
       "consecutive tokens that an SSM must predict to have learned a sample (4)", 0, 1, 65536},
      {"temperature", FlagType::kNumber, "T", "temperature of the continuations (0: greedy)", 0, 0,
       100},
      {"soft-labels", FlagType::kInt, "K",
       "train on the LLM's top K probabilities per position instead of the sampled token; for "
       "drafts of sampled answers (0: off)",
       0, 0, 64},
      {"holdout", FlagType::kNumber, "F",
       "fraction of the prompts, at the end, held out for the "
       "measurement (0.1)",
       0, 0.0001, 0.9},
      {"expansion", FlagType::kText, "LIST", "token tree of the measurement (1,1,3,1,1)"},
      {"weights", FlagType::kText, "FORMAT",
       "weight format of the LLM: f32, bf16, f16, int8, int4 (as in the artifact)"},
      {"epochs", FlagType::kInt, "N", "training epochs per SSM (4)", 'e', 1, 1e9},
      {"steps", FlagType::kInt, "N", "instead of --epochs", 0, 1, 1e12},
      {"batch-size", FlagType::kInt, "N", "prompts per step (16)", 'b', 1, 1 << 20},
      {"seed", FlagType::kInt, "N", "random seed (0)", 0, 0},
      {"checkpoint-every", FlagType::kInt, "N", "steps between checkpoints (only the last)", 0, 0,
       1e12},
      {"name", FlagType::kText, "NAME", "name prefix of the tuned models (LLM-boost)"}};
  for (const FlagSpec& flag : OptimizerFlags()) c.flags.push_back(flag);
  c.flags.push_back({"detach", FlagType::kSwitch, "", "submit and return"});
  c.flags.push_back({"list", FlagType::kSwitch, "", "list all boost-tuning jobs"});
  c.flags.push_back({"watch", FlagType::kText, "ID", "follow one to its end"});
  c.flags.push_back({"cancel", FlagType::kText, "ID", "stop one"});
  c.flags.push_back({"resume", FlagType::kText, "ID", "resume one that failed or was cancelled"});
  c.examples = {
      {"two small models that help each other",
       "espalier boost-tune llm --ssm=ssm --ssm=ssm -d book.txt --lr=1e-3 --name=drafts"},
      {"your users' prompts, one model from scratch",
       "espalier boost-tune llm --model=llama:ssm --prompts=prompts.json --steps=500 --lr=3e-3"},
      {"then", "espalier serve llm --ssm=drafts-1 --ssm=drafts-2"}};
  c.run = RunBoostTune;
  return c;
}

}  // namespace espalier
