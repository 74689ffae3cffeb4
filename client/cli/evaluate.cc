// `espalier evaluate`: losses and metrics of a trained model over a dataset.
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cli/column_flags.h"
#include "client/cli/command.h"
#include "client/cli/dataset_files.h"
#include "client/cli/interrupt.h"
#include "client/cli/transfer.h"
#include "client/terminal/table.h"

namespace espalier {
namespace {

absl::Status FillRequest(Context& context, Client* client, v1::OpenSessionRequest* request) {
  const ParsedFlags& flags = context.flags();
  v1::TrainingSpec* spec = request->mutable_spec();
  spec->set_name(absl::StrCat("evaluate ", flags.positional()[0]));
  spec->set_init_artifact(flags.positional()[0]);
  spec->set_batch_size(flags.Int("batch-size", 64));
  // Nothing is trained: the least that a session keeps.
  spec->mutable_optimizer()->set_name("sgd");
  spec->mutable_optimizer()->mutable_learning_rate()->set_peak(1e-3);
  spec->mutable_search()->set_strategy(v1::SearchOptions::SINGLE_DEVICE);
  const auto columns = ColumnsOf(flags);
  if (!columns.ok()) return columns.status();
  spec->mutable_dataset()->mutable_columns()->insert(columns->begin(), columns->end());
  absl::Status filled =
      FillDataset(flags, "dataset", UploadOnce(context, client), spec->mutable_dataset());
  if (!filled.ok()) return filled;
  if (spec->dataset().format() == v1::Dataset::TEXT) {
    spec->mutable_dataset()->set_sequence_length(flags.Int("sequence-length", 128));
  }
  request->set_wait_seconds(flags.Number("wait", 60));
  return absl::OkStatus();
}

absl::Status RunEvaluate(Context& context) {
  if (absl::Status s = CheckArguments(context, 1, 1, "a trained model's name"); !s.ok()) return s;
  auto client = context.client();
  if (!client.ok()) return client.status();
  v1::OpenSessionRequest request;
  if (absl::Status s = FillRequest(context, *client, &request); !s.ok()) return s;
  int64_t examples = 0;
  const auto evaluate = [&](const v1::OpenSessionReply& session) {
    v1::SessionCommand command;
    auto* rows = command.mutable_evaluate()->mutable_batch()->mutable_rows();
    examples = session.examples();
    for (int64_t row = 0; row < examples; ++row) rows->add_values(row);
    return command;
  };
  const absl::StatusOr<v1::SessionReply> reply = (*client)->RunInSession(request, evaluate);
  if (!reply.ok()) return reply.status();
  const std::map<std::string, double> values(reply->values().begin(), reply->values().end());
  if (context.json()) {
    nlohmann::ordered_json json = {{"model", context.flags().positional()[0]},
                                   {"examples", examples}};
    json["values"] = values;
    context.Document(json);
    return absl::OkStatus();
  }
  Table table({{"value"}, {"mean", Align::kRight}});
  for (const auto& [name, value] : values) table.Row({Printable(name), absl::StrCat(value)});
  context.out() << table.Render(context.terminal())
                << context.style().Dim(absl::StrCat("over ", examples, " examples")) << std::endl;
  return absl::OkStatus();
}

}  // namespace

Command EvaluateCommand() {
  Command c;
  c.name = "evaluate";
  c.summary = "compute the losses and metrics of a trained model over a dataset";
  c.usage = "evaluate ARTIFACT --dataset=FILE [flags]";
  c.description =
      "Runs on an idle worker, in inference mode: without dropout, with running statistics. Each "
      "example counts once. The model need not be served.";
  c.flags = {
      {"dataset", FlagType::kText, "FILE",
       "examples with labels: npz, npy or text; artifact:NAME or s3://BUCKET/KEY", 'd'},
      {"dataset-format", FlagType::kText, "FORMAT",
       "text or npz; detected from the extension .npz or .npy"},
      {"no-upload", FlagType::kSwitch, "",
       "read the dataset at its path on the coordinator and the workers"},
      {"batch-size", FlagType::kInt, "N", "examples per pass (64)", 'b', 1, 1 << 20},
      {"sequence-length", FlagType::kInt, "N", "tokens per example of a text (128)", 0, 1, 1 << 24},
      {"wait", FlagType::kNumber, "SECONDS", "how long to wait for an idle worker (60)", 0, 0,
       3600},
      ColumnFlag()};
  c.examples = {
      {"accuracy on a test set", "espalier evaluate digits -d test.npz --input labels=y"}};
  c.run = RunEvaluate;
  return c;
}

}  // namespace espalier
