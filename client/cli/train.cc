#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "client/cli/command.h"
#include "client/cli/dataset_files.h"
#include "client/cli/interrupt.h"
#include "client/cli/job_view.h"
#include "client/cli/loss_flags.h"
#include "client/cli/model_flags.h"
#include "client/cli/onnx_files.h"
#include "client/cli/plan_view.h"
#include "client/cli/proto_json.h"
#include "client/cli/search_flags.h"
#include "client/cli/tokenizer_files.h"
#include "client/cli/trained_view.h"
#include "client/cli/training_flags.h"
#include "client/cli/transfer.h"
#include "client/terminal/table.h"
#include "client/terminal/text.h"

namespace espalier {
namespace {

bool HasModel(const ParsedFlags& flags) {
  return flags.Has("model") || flags.Has("graph") || flags.Has("onnx");
}

// Sets what the specification names of files, after uploads, and the graph.
absl::Status FillInputs(const ParsedFlags& flags, const Uploader& upload, ModelChoice* model,
                        v1::TrainingSpec* spec) {
  if (flags.Has("tokenizer")) {
    auto tokenizer = TokenizerArtifact(upload, flags.Text("tokenizer"));
    if (!tokenizer.ok()) return tokenizer.status();
    spec->set_tokenizer_artifact(*tokenizer);
  }
  absl::Status filled = FillDataset(flags, "dataset", upload, spec->mutable_dataset());
  if (filled.ok() && flags.Has("validation")) {
    filled =
        FillDataset(flags, "validation", upload, spec->mutable_validation()->mutable_dataset());
  }
  if (!filled.ok()) return filled;
  if (spec->dataset().format() == v1::Dataset::TEXT) {
    spec->mutable_dataset()->set_sequence_length(model->sequence_length > 0 ? model->sequence_length
                                                                            : 128);
  }
  if (model->onnx_path.empty()) {
    if (HasModel(flags)) *spec->mutable_graph() = std::move(model->graph);
    if (flags.Has("model") && !flags.Has("sequence-length") &&
        spec->dataset().format() == v1::Dataset::NPZ) {
      // The coordinator builds it for examples of the arrays' length.
      v1::Graph outline;
      outline.set_name(spec->graph().name());
      *outline.mutable_metadata() = spec->graph().metadata();
      *spec->mutable_graph() = std::move(outline);
    }
    return absl::OkStatus();
  }
  auto name = OnnxArtifact(upload, model->onnx_path);
  if (!name.ok()) return name.status();
  spec->set_onnx_artifact(*name);
  return absl::OkStatus();
}

// Waits until the job has a plan and writes it to a file.
absl::Status ExportPlanOf(Client* client, const std::string& job_id, const std::string& path) {
  auto json = client->ExportPlan(job_id);
  if (!json.ok()) return json.status();
  return WriteFile(path, *json);
}

// Shows what a DryRunReply or SubmitReply says of the model.
template <typename Reply>
void ShowTrained(std::ostream& out, const Reply& reply) {
  const std::string trained = DescribeTrained(reply.trained());
  if (!trained.empty()) out << trained << "\n";
  for (const std::string& note : reply.notes()) out << "note: " << Printable(note, true) << "\n";
}

// Shows the dry run; fails if the job would not run.
absl::Status ShowDryRun(Context& context, const v1::DryRunReply& reply) {
  const absl::Status verdict =
      reply.problems().empty()
          ? absl::OkStatus()
          : absl::FailedPreconditionError(
                absl::StrCat("the job would not run: ", Printable(reply.problems(0)),
                             reply.problems_size() == 1
                                 ? ""
                                 : absl::StrCat(" (and ", reply.problems_size() - 1, " more)")));
  if (context.flags().Has("export-strategy") && reply.has_plan()) {
    absl::Status s = WriteFile(context.flags().Text("export-strategy"), PlanToJson(reply.plan()));
    if (!s.ok()) return s;
  }
  if (context.json()) {
    nlohmann::ordered_json json = ToJson(reply);
    json["would_run"] = verdict.ok();
    context.Document(json);
    return verdict;
  }
  std::ostream& out = context.out();
  const bool unicode = context.terminal().unicode;
  for (const std::string& problem : reply.problems()) {
    out << "problem: " << Printable(problem, true) << "\n";
  }
  ShowTrained(out, reply);
  if (context.flags().Has("verbose")) {
    out << RenderParameterUses(reply.parameter_uses(), context.terminal());
  }
  if (reply.has_plan()) {
    out << RenderPlanSummary(reply.plan(), context.terminal());
    Table table({{"device"}, {"needs", Align::kRight}, {"has", Align::kRight}, {"", {}, true}});
    for (const v1::DryRunReply::DeviceMemory& memory : reply.memory()) {
      table.Row({absl::StrCat(memory.rank()),
                 FormatBytes(static_cast<double>(memory.needed_bytes())),
                 memory.memory_bytes() > 0 ? FormatBytes(static_cast<double>(memory.memory_bytes()))
                                           : "unknown",
                 Printable(memory.model())});
    }
    out << table.Render(context.terminal());
    out << reply.total_steps() << " steps of " << FormatSeconds(reply.step_seconds(), unicode)
        << ": " << FormatSeconds(reply.total_seconds(), unicode) << ", "
        << FormatCount(static_cast<double>(reply.parameters())) << " parameters\n";
  }
  if (verdict.ok()) out << "the job would run; nothing was queued\n";
  out.flush();
  return verdict;
}

// Keeps no upload: a dry run leaves nothing behind, whatever ends it.
absl::Status RunDryRun(Context& context, Client* client, ModelChoice model, v1::TrainingSpec spec) {
  Canceller canceller;
  const InterruptWatch watch([&] { canceller.Cancel(); });
  const absl::StatusOr<v1::DryRunReply> reply = [&]() -> absl::StatusOr<v1::DryRunReply> {
    TemporaryUploads uploads(&context, client, &canceller);
    const Uploader upload = [&](const std::vector<LocalFile>& files, v1::Artifact::Kind kind) {
      return uploads.Upload(files, kind);
    };
    const absl::Status filled = FillInputs(context.flags(), upload, &model, &spec);
    if (!filled.ok()) return filled;
    return client->DryRun(spec, &canceller);
  }();
  if (!reply.ok() && watch.interrupted()) {
    return InterruptedError("interrupted; nothing was queued");
  }
  return reply.ok() ? ShowDryRun(context, *reply) : reply.status();
}

absl::Status RunTrain(Context& context) {
  if (absl::Status s = CheckArguments(context, 0, 0, ""); !s.ok()) return s;
  const ParsedFlags& flags = context.flags();
  if (flags.Has("dry-run") && flags.Has("detach")) {
    return UsageError("--dry-run queues nothing, so there is nothing to --detach from");
  }
  if (flags.Has("verbose") && !flags.Has("dry-run")) {
    return UsageError("--verbose goes with --dry-run: it lists all parameters");
  }
  if (flags.Has("detach") && flags.Has("export-strategy")) {
    return UsageError(
        "--export-strategy needs the plan, which --detach does not wait for; later: "
        "espalier plan --job=ID --export-strategy=FILE");
  }
  // Check everything that can be checked locally before the first upload.
  v1::TrainingSpec spec;
  if (absl::Status s = FillTraining(flags, &spec); !s.ok()) return s;
  spec.set_init_artifact(flags.Text("init"));
  absl::StatusOr<ModelChoice> model = ModelChoice();
  model->sequence_length = static_cast<int>(flags.Int("sequence-length", 0));
  // Without a local model, the coordinator uses the artifact's.
  if (HasModel(flags) || spec.init_artifact().empty()) {
    model = ChooseModel(flags, /*byte_tokenizer=*/!flags.Has("tokenizer"));
  } else if (flags.Has("loss") || flags.Has("loss-output") || flags.Has("metrics")) {
    return UsageError("--loss and --metrics go with --onnx; --init's model has its own");
  }
  if (!model.ok()) return model.status();
  if (!model->onnx_path.empty()) {
    auto objective = ChooseObjective(flags);
    if (!objective.ok()) return objective.status();
    *spec.mutable_objective() = *std::move(objective);
  }
  auto client = context.client();
  if (!client.ok()) return client.status();
  if (flags.Has("dry-run")) return RunDryRun(context, *client, *std::move(model), std::move(spec));
  const absl::Status filled = FillInputs(flags, UploadOnce(context, *client), &*model, &spec);
  if (!filled.ok()) return filled;
  auto submitted = (*client)->Submit(spec);
  constexpr char kNameField[] = "spec.output_model: ";
  if (absl::StartsWith(submitted.status().message(), kNameField)) {
    return absl::Status(submitted.status().code(), absl::StrReplaceAll(submitted.status().message(),
                                                                       {{kNameField, "--name: "}}));
  }
  if (!submitted.ok()) return submitted.status();
  const std::string& job_id = submitted->job_id();

  if (context.json()) {
    context.Line(ToJson(*submitted));
  } else {
    if (!flags.Has("detach")) submitted->clear_notes();  // the job's record has them, too
    ShowTrained(context.out(), *submitted);
    context.out() << "submitted job " << context.style().Bold(Printable(job_id))
                  << (flags.Has("detach") ? "" : "; Ctrl-C leaves it running") << "\n";
    if (flags.Has("detach")) {
      context.out() << "watch it: espalier jobs watch " << Printable(job_id) << "\n"
                    << "stop it:  espalier jobs cancel " << Printable(job_id) << "\n";
    }
    context.out().flush();
  }
  if (flags.Has("detach")) return absl::OkStatus();
  if (absl::Status s = WatchJob(&context, job_id, flags.Int("print-freq", 0)); !s.ok()) return s;
  if (!flags.Has("export-strategy")) return absl::OkStatus();
  return ExportPlanOf(*client, job_id, flags.Text("export-strategy"));
}

}  // namespace

Command TrainCommand() {
  Command c;
  c.name = "train";
  c.summary = "train a model with the best plan for the devices that have joined";
  c.usage = "train --model=MODEL|--graph=FILE|--onnx=FILE|--init=ARTIFACT --dataset=FILE [flags]";
  c.description =
      "Uploads the dataset (once: a file with the same content is found again), submits the job, "
      "and "
      "shows "
      "the\nplan with its predictions, the progress, the loss and the evaluation on held-out "
      "examples.";
  c.flags = ModelFlags();
  for (auto& flag : TrainingFlags()) c.flags.push_back(flag);
  for (auto& flag : SearchFlags()) c.flags.push_back(flag);
  c.flags.push_back({"init", FlagType::kText, "ARTIFACT",
                     "start from this model's parameters; without --model, also use its "
                     "architecture"});
  c.flags.push_back({"tokenizer", FlagType::kText, "FOLDER|ARTIFACT",
                     "the trained model's tokenizer, and that of a text: a folder that holds a "
                     "tokenizer.json, a GGUF file, or a model's name (--init's, or bytes)"});
  c.flags.push_back({"detach", FlagType::kSwitch, "", "submit and return"});
  c.flags.push_back({"dry-run", FlagType::kSwitch, "",
                     "only check and plan: show whether it fits, how long it would take, and "
                     "every unsupported operator; exit code 1 if it would not run. What it uploads "
                     "is deleted at its end"});
  c.flags.push_back({"verbose", FlagType::kSwitch, "",
                     "with --dry-run: list every parameter, whether it is trained, and why"});
  c.examples = {
      {"a byte-level language model",
       "espalier train --model=llama:llm -d book.txt --steps=400 -b 16 --name=llm"},
      {"an ONNX file on arrays",
       "espalier train --onnx=cnn.onnx -d digits.npz --input x=x --input labels=y -e 10 -b 64"},
      {"with FlexFlow's flags",
       "espalier train --graph=mlp.pb -d data.npz -e 5 -b 64 -p 10 --budget 1000 --alpha 0.05"},
      {"continue training a model on other data",
       "espalier train --init=llm -d letters.txt --lr=3e-4 --steps=100 --name=letters"},
      {"an architecture with a tokenizer from scratch",
       "espalier train --model=config.json --tokenizer=./tokenizer -d book.txt --steps=400 "
       "--name=words"},
      {"stop when the held-out loss no longer falls, and keep the best model",
       "espalier train --onnx=cnn.onnx -d digits.npz --input labels=y -e 100 --early-stop=3 "
       "--keep-best"},
      {"train only the last layer",
       "espalier train --onnx=cnn.onnx -d digits.npz --input labels=y -e 10 --train-only='fc.*'"},
      {"would it run, and how long?",
       "espalier train --onnx=cnn.onnx -d digits.npz --input labels=y -e 10 --dry-run"},
      {"for scripts",
       "espalier train --model=llama:tiny -d book.txt --steps=50 --json | tail -n 1"}};
  c.run = RunTrain;
  return c;
}

}  // namespace espalier
