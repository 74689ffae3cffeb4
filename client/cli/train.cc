#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/cli/command.h"
#include "client/cli/job_view.h"
#include "client/cli/model_flags.h"
#include "client/cli/training_flags.h"
#include "client/cli/transfer.h"
#include "client/terminal/text.h"

namespace espalier {
namespace {

// dataset.uri, after an upload where one is needed.
absl::Status FillDataset(Context& context, Client* client, proto::Dataset* dataset) {
  const ParsedFlags& flags = context.flags();
  const std::string given = flags.Text("dataset");
  if (given.empty()) return UsageError("which dataset? Give --dataset=FILE (text, npz or npy)");
  auto format = DatasetFormat(flags, given);
  if (!format.ok()) return format.status();
  dataset->set_format(*format);
  if (absl::StartsWith(given, "artifact:")) {
    dataset->set_uri(given);
    return absl::OkStatus();
  }
  if (flags.Has("no-upload")) {
    if (!absl::StartsWith(given, "/"))
      return UsageError("--no-upload needs an absolute path in --dataset");
    dataset->set_uri(given);
    return absl::OkStatus();
  }
  auto name = UploadOnce(context, client, given, proto::Artifact::DATASET);
  if (!name.ok()) return name.status();
  dataset->set_uri("artifact:" + *name);
  return absl::OkStatus();
}

absl::Status FillOnnx(Context& context, Client* client, const std::string& path,
                      proto::TrainingSpec* spec) {
  auto name = UploadOnce(context, client, path, proto::Artifact::ONNX);
  if (!name.ok()) return name.status();
  spec->set_onnx_artifact(*name);
  const std::string loss = context.flags().Text("loss", "sparse_categorical_crossentropy");
  spec->set_loss(loss);
  const std::string metrics = context.flags().Text(
      "metrics", loss == "sparse_categorical_crossentropy" ? "accuracy" : "none");
  if (metrics != "none") {
    for (absl::string_view metric : absl::StrSplit(metrics, ',', absl::SkipEmpty())) {
      spec->add_metrics(std::string(metric));
    }
  }
  return absl::OkStatus();
}

// Waits until the job has a plan and writes it.
absl::Status ExportPlanOf(Client* client, const std::string& job_id, const std::string& path) {
  auto json = client->ExportPlan(job_id);
  if (!json.ok()) return json.status();
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << *json;
  out.close();
  if (!out) return absl::PermissionDeniedError(absl::StrCat("cannot write ", path));
  return absl::OkStatus();
}

absl::Status Run(Context& context) {
  if (absl::Status s = CheckArguments(context, 0, 0, ""); !s.ok()) return s;
  const ParsedFlags& flags = context.flags();
  if (flags.Has("detach") && flags.Has("export-strategy")) {
    return UsageError(
        "--export-strategy needs the plan, which --detach does not wait for; later: "
        "espalier plan --job=ID --export-strategy=FILE");
  }
  // All that can be wrong here is said before the first byte goes out.
  proto::TrainingSpec spec;
  if (absl::Status s = FillTraining(flags, &spec); !s.ok()) return s;
  auto model = ChooseModel(flags);
  if (!model.ok()) return model.status();
  auto client = context.client();
  if (!client.ok()) return client.status();
  if (absl::Status s = FillDataset(context, *client, spec.mutable_dataset()); !s.ok()) return s;
  if (spec.dataset().format() == proto::Dataset::TEXT) {
    spec.mutable_dataset()->set_sequence_length(model->sequence_length > 0 ? model->sequence_length
                                                                           : 128);
  }
  if (model->onnx_path.empty()) {
    *spec.mutable_graph() = std::move(model->graph);
  } else if (absl::Status s = FillOnnx(context, *client, model->onnx_path, &spec); !s.ok()) {
    return s;
  }
  auto job_id = (*client)->Submit(spec);
  if (!job_id.ok()) return job_id.status();

  if (context.json()) {
    nlohmann::ordered_json line;
    line["job_id"] = *job_id;
    context.Line(line);
  } else {
    context.out() << "submitted job " << context.style().Bold(Printable(*job_id))
                  << (flags.Has("detach") ? "" : "; Ctrl-C leaves it running") << "\n";
    if (flags.Has("detach")) {
      context.out() << "watch it: espalier jobs watch " << Printable(*job_id) << "\n"
                    << "stop it:  espalier jobs cancel " << Printable(*job_id) << "\n";
    }
    context.out().flush();
  }
  if (flags.Has("detach")) return absl::OkStatus();
  if (absl::Status s = WatchJob(&context, *job_id, flags.Int("print-freq", 0)); !s.ok()) return s;
  if (!flags.Has("export-strategy")) return absl::OkStatus();
  return ExportPlanOf(*client, *job_id, flags.Text("export-strategy"));
}

}  // namespace

Command TrainCommand() {
  Command c;
  c.name = "train";
  c.summary = "train a model along the best plan for the devices that have joined";
  c.usage = "train --model=MODEL|--graph=FILE|--onnx=FILE --dataset=FILE [flags]";
  c.description =
      "Uploads the dataset (once: its name says its content), submits the job, shows the plan with "
      "its\n"
      "predictions, the progress, the loss and the evaluation on the held-out part.";
  c.flags = ModelFlags();
  for (auto& flag : TrainingFlags()) c.flags.push_back(flag);
  for (auto& flag : SearchFlags()) c.flags.push_back(flag);
  c.flags.push_back({"detach", FlagType::kSwitch, "", "submit and return"});
  c.examples = {
      {"a byte-level language model",
       "espalier train --model=llama:llm -d book.txt --steps=400 -b 16 --name=llm"},
      {"an ONNX file on arrays",
       "espalier train --onnx=cnn.onnx -d digits.npz --input x=x --input labels=y -e 10 -b 64"},
      {"FlexFlow's way",
       "espalier train --graph=mlp.pb -d data.npz -e 5 -b 64 -p 10 --budget 1000 --alpha 0.05"},
      {"for scripts",
       "espalier train --model=llama:tiny -d book.txt --steps=50 --json | tail -n 1"}};
  c.run = Run;
  return c;
}

}  // namespace espalier
