#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/cli/command.h"
#include "client/cli/interrupt.h"
#include "client/cli/proto_json.h"
#include "client/cli/replay/graph_questions.h"
#include "client/cli/replay/replay_view.h"
#include "client/cli/replay/stored_replays.h"
#include "client/cli/step_range_flag.h"
#include "client/cli/transfer.h"
#include "client/terminal/text.h"
#include "ops/probe/expression.h"

namespace espalier {
namespace {

// The value of --evaluate that means the examples that a job kept apart.
constexpr char kHoldout[] = "holdout";
constexpr size_t kMostDeletedReplays = 10'000;

absl::StatusOr<v1::ReplaySpec> ReplaySpecOf(const Context& context, const std::string& run) {
  const ParsedFlags& flags = context.flags();
  v1::ReplaySpec spec;
  spec.set_run(run);
  for (const std::string& probe : flags.Values("log")) {
    if (const auto parsed = ParseProbe(probe); !parsed.ok()) {
      return UsageError(
          absl::StrCat("--log is \"", Printable(probe), "\": ", parsed.status().message()));
    }
    spec.add_log(probe);
  }
  if (absl::Status s = AddGraphQuestions(flags.Values("log-graph"), &spec); !s.ok()) return s;
  if (flags.Has("steps")) {
    const absl::StatusOr<StepRange> range = StepRangeFlag("steps", flags.Text("steps"));
    if (!range.ok()) return range.status();
    spec.set_first_step(range->first);
    spec.set_end_step(range->end);
  }
  spec.set_every(flags.Int("every", 0));
  if (flags.Has("segment")) {
    const std::vector<std::string> parts = absl::StrSplit(flags.Text("segment"), '/');
    int32_t part = 0, of = 0;
    if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &part) ||
        !absl::SimpleAtoi(parts[1], &of) || part < 1 || part > of) {
      return UsageError(absl::StrCat("--segment is \"", Printable(flags.Text("segment")),
                                     "\"; accepted: K/N, part K of N, from 1 to ",
                                     of > 0 ? absl::StrCat(of) : "N"));
    }
    spec.set_segment(part);
    spec.set_segments(of);
  }
  spec.set_max_workers(static_cast<int32_t>(flags.Int("workers", 0)));
  spec.set_any_plan(flags.Has("any-plan"));
  if (flags.Has("at") && flags.Text("at") != "checkpoints") {
    return UsageError(
        absl::StrCat("--at is \"", Printable(flags.Text("at")), "\"; accepted: checkpoints"));
  }
  if (flags.Has("evaluate") && !flags.Has("at")) {
    return UsageError("--evaluate is for checkpoints: add --at=checkpoints");
  }
  spec.set_at_checkpoints(flags.Has("at"));
  spec.set_evaluate_holdout(flags.Text("evaluate") == kHoldout);
  return spec;
}

// Whether a dataset of this name is uploaded.
absl::StatusOr<bool> IsDataset(Client* client, const std::string& name) {
  if (absl::StrContains(name, '*')) return false;
  v1::ListArtifactsRequest request;
  request.set_name(name);
  request.add_kinds(v1::Artifact::DATASET);
  const absl::StatusOr<v1::ListArtifactsReply> found = client->ListArtifacts(request, 1);
  if (!found.ok()) return found.status();
  return found->artifacts_size() > 0 && found->artifacts(0).name() == name;
}

// A dataset to evaluate: a file, after its upload, or one that is uploaded.
absl::Status FillEvaluated(Context& context, Client* client, v1::ReplaySpec* spec) {
  const std::string given = context.flags().Text("evaluate");
  if (given.empty() || given == kHoldout) return absl::OkStatus();
  if (absl::StartsWith(given, "artifact:") || absl::StartsWith(given, "s3://")) {
    spec->mutable_evaluate()->set_uri(given);
    return absl::OkStatus();
  }
  std::error_code error;
  if (!std::filesystem::exists(given, error)) {
    const absl::StatusOr<bool> uploaded = IsDataset(client, given);
    if (!uploaded.ok()) return uploaded.status();
    if (!*uploaded) {
      return UsageError(absl::StrCat("--evaluate is \"", Printable(given),
                                     "\": there is no such file, and no dataset of that name is "
                                     "uploaded (espalier models --kind=dataset)"));
    }
    spec->mutable_evaluate()->set_uri(absl::StrCat("artifact:", given));
    return absl::OkStatus();
  }
  const absl::StatusOr<std::string> name =
      UploadOnce(context, client)(SingleLocalFile(given), v1::Artifact::DATASET);
  if (!name.ok()) return name.status();
  spec->mutable_evaluate()->set_uri(absl::StrCat("artifact:", *name));
  return absl::OkStatus();
}

absl::Status WatchOne(Context& context, Client* client, const std::string& id) {
  Canceller canceller;
  const InterruptWatch watch([&] { canceller.Cancel(); });
  ReplayView view(&context);
  const absl::Status status = client->WatchReplay(
      id, /*with_rows=*/true, [&](const v1::ReplayEvent& event) { return view.OnEvent(event); },
      &canceller);
  if (watch.interrupted()) {
    return InterruptedError(absl::StrCat(id,
                                         " goes on without this command; espalier replay watch ",
                                         id, " shows it, espalier replay cancel ", id, " ends it"));
  }
  return status.ok() ? view.Finish() : status;
}

absl::Status StartOne(Context& context, Client* client, v1::ReplaySpec spec) {
  if (absl::Status s = FillEvaluated(context, client, &spec); !s.ok()) return s;
  const std::vector<std::string> graphs = context.flags().Values("log-graph");
  const bool only_estimate = context.flags().Has("estimate");
  if (only_estimate || !context.json()) {
    const absl::StatusOr<v1::ReplayEstimate> estimate = client->EstimateReplay(spec);
    if (!estimate.ok()) return NameGraphFile(estimate.status(), graphs);
    if (context.json()) {
      context.Document(ToJson(*estimate));
    } else {
      // The replay itself has notes of what runs lack.
      if (only_estimate) context.out() << RenderNotes(*estimate);
      context.out() << RenderEstimate(*estimate, context.terminal()) << std::flush;
    }
    if (only_estimate) return absl::OkStatus();
  }
  const absl::StatusOr<v1::ReplayInfo> replay = client->StartReplay(spec);
  if (!replay.ok()) return NameGraphFile(replay.status(), graphs);
  if (context.flags().Has("detach")) {
    if (context.json()) {
      context.Document(ToJson(*replay));
    } else {
      context.out() << "started " << replay->id() << "; espalier replay watch " << replay->id()
                    << " shows it\n"
                    << std::flush;
    }
    return absl::OkStatus();
  }
  return WatchOne(context, client, replay->id());
}

absl::Status RunReplay(Context& context) {
  const std::vector<std::string>& arguments = context.flags().positional();
  const std::string verb = arguments.empty() ? "" : arguments[0];
  const bool of_one = verb == "watch" || verb == "cancel" || verb == "get";
  const bool of_some = verb == "delete";
  absl::Status status = absl::OkStatus();
  if (of_one || of_some) {
    status = CheckArguments(context, 2, of_one ? 2 : kMostDeletedReplays,
                            absl::StrCat(verb, " and a replay's id"));
  } else if (verb == "list") {
    status = CheckArguments(context, 1, 2, "list and a run");
  } else {
    status = CheckArguments(context, 1, 1, "a run, as NAME@VERSION, NAME, or a job's id");
  }
  if (!status.ok()) return status;
  if (verb.empty())
    return UsageError("the run has no name; accepted: NAME@VERSION, NAME, a job's id");
  if (of_one || of_some || verb == "list") {
    for (const FlagSpec& flag : ReplayCommand().flags) {
      if (!context.flags().Has(flag.name)) continue;
      return UsageError(absl::StrCat("--", flag.name, " is for a new replay, not for ", verb));
    }
  }
  // Before a coordinator is looked for: wrong usage is said in any case.
  absl::StatusOr<v1::ReplaySpec> spec = v1::ReplaySpec();
  if (!of_one && !of_some && verb != "list") spec = ReplaySpecOf(context, verb);
  if (!spec.ok()) return spec.status();
  auto client = context.client();
  if (!client.ok()) return client.status();
  if (verb == "list") {
    return ListStoredReplays(context, *client, arguments.size() > 1 ? arguments[1] : "");
  }
  if (verb == "watch") return WatchOne(context, *client, arguments[1]);
  if (verb == "get") return ShowStoredReplay(context, *client, arguments[1]);
  if (verb == "cancel") return CancelStoredReplay(context, *client, arguments[1]);
  if (of_some) {
    return DeleteStoredReplays(context, *client, {arguments.begin() + 1, arguments.end()});
  }
  return StartOne(context, *client, *std::move(spec));
}

}  // namespace

Command ReplayCommand() {
  Command c;
  c.name = "replay";
  c.summary = "train steps of recorded runs again, and log what nobody logged then";
  c.usage =
      "replay RUN --log=PROBE [flags] | list [RUN] | get REPLAY | watch REPLAY | cancel REPLAY | "
      "delete REPLAY...";
  c.description =
      "RUN is NAME@VERSION, NAME, which is its newest version, or a job's id; * in NAME stands for "
      "any characters, and NAME@* is all versions.\n"
      "PROBE is a value, or REDUCTION(value, ...). Values: relu_1 (computed), param(w), grad(w), "
      "update(w), state(w, adam_m), batch(x); * in a name stands for any characters. Reductions: "
      "norm, mean, std, min, max, count_nan, histogram(v, 64), quantiles(v, 0.1, 0.9), sample(v, "
      "10), top_k(v, 10), confusion(logits, labels); without one, the whole tensor.\n"
      "Steps are trained again from the nearest checkpoint on workers that are idle. Every loss is "
      "compared with the recorded one, to the bit where plan, program and machine are the same; "
      "the first that differs ends the replay. Without --log and --log-graph, that is all it "
      "does.\n"
      "delete removes a replay that is over with its answers, which the history does not show "
      "then.";
  c.flags = {{.name = "log",
              .type = FlagType::kText,
              .value = "PROBE",
              .doc = "what to log; repeatable",
              .repeated = true},
             {.name = "log-graph",
              .type = FlagType::kText,
              .value = "[NAME=]FILE",
              .doc = "evaluate a small graph of the user's own in each of these steps, or with "
                     "--evaluate over its batches: an .onnx file, or a graph protobuf, whose "
                     "inputs are named after values, such as grad(w); the answer is NAME (the "
                     "file's); repeatable",
              .repeated = true},
             {"steps", FlagType::kText, "A:B", "steps from A on, below B; also A:, :B and A (all)"},
             {"every", FlagType::kInt, "N", "only every N-th of these (1)", 0, 1, 1e12},
             {"segment", FlagType::kText, "K/N", "only part K of N of these, from 1 on"},
             {"workers", FlagType::kInt, "N", "at most so many at once (all idle ones)", 0, 1, 1e6},
             {"any-plan", FlagType::kSwitch, "",
              "if workers like the recorded ones are not idle, use others, by a plan of their own; "
              "losses are then compared within a tolerance"},
             {"at", FlagType::kText, "checkpoints",
              "only at steps that have a checkpoint, without training: param(...), state(...), and "
              "values of an evaluation"},
             {"evaluate", FlagType::kText, "FILE",
              "at checkpoints: evaluate these examples, a file or an uploaded dataset by its name, "
              "or those that the job kept apart: holdout"},
             {"estimate", FlagType::kSwitch, "", "only say what it would take"},
             {"detach", FlagType::kSwitch, "", "start it, and do not wait"}};
  c.examples = {
      {"norms of gradients that nobody logged",
       "espalier replay lm --log='norm(grad(*q_proj.weight))' --steps=400:500"},
      {"a histogram of activations, every 10th step",
       "espalier replay digits@3 --log='histogram(relu_1, 64)' --every=10"},
      {"what a graph of your own makes of two gradients",
       "espalier replay lm --log-graph=cosine.onnx --steps=400:500"},
      {"check that a run repeats", "espalier replay lm@3"},
      {"norms of weights at all checkpoints",
       "espalier replay lm --at=checkpoints --log='norm(param(*))'"},
      {"confusion matrices over time",
       "espalier replay digits --at=checkpoints --evaluate=holdout "
       "--log='confusion(logits, batch(y))'"},
      {"say what it would take", "espalier replay 'lm*' --log='norm(grad(*))' --estimate"},
      {"say what a replay was asked, and how it ended", "espalier replay get replay-0123456789ab"}};
  c.run = RunReplay;
  return c;
}

}  // namespace espalier
