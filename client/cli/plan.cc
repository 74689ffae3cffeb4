#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "client/cli/command.h"
#include "client/cli/devices.h"
#include "client/cli/model_flags.h"
#include "client/cli/plan_view.h"
#include "client/cli/proto_json.h"
#include "client/cli/training_flags.h"
#include "client/terminal/text.h"

namespace espalier {
namespace {

absl::Status Explain(Context& context, const proto::ExplainRequest& request) {
  auto client = context.client();
  if (!client.ok()) return client.status();
  auto reply = (*client)->Explain(request);
  if (!reply.ok()) return reply.status();
  if (const std::string path = context.flags().Text("export-strategy"); !path.empty()) {
    std::ofstream out(path, std::ios::binary | std::ios::trunc);
    out << PlanToJson(reply->plan());
    out.close();
    if (!out) return absl::PermissionDeniedError(absl::StrCat("cannot write ", path));
  }
  if (context.json()) {
    context.Document(ToJson(*reply));
    return absl::OkStatus();
  }
  std::string text = Printable(reply->text(), true);
  if (!text.empty() && text.back() != '\n') text += '\n';
  context.out() << text;
  if (reply->measured_step_seconds() > 0) {
    context.out() << "measured step: "
                  << FormatSeconds(reply->measured_step_seconds(), context.terminal().unicode)
                  << ", predicted "
                  << FormatSeconds(reply->plan().prediction().step_seconds(),
                                   context.terminal().unicode)
                  << "\n";
  }
  context.out().flush();
  return absl::OkStatus();
}

absl::Status RunPlan(Context& context) {
  if (absl::Status s = CheckArguments(context, 0, 0, ""); !s.ok()) return s;
  const ParsedFlags& flags = context.flags();
  proto::ExplainRequest request;
  if (flags.Has("job")) {
    request.set_job_id(flags.Text("job"));
    return Explain(context, request);
  }
  proto::PlanRequest* plan = request.mutable_plan();
  auto search = MakeSearch(flags);
  if (!search.ok()) return search.status();
  *plan->mutable_search() = *std::move(search);
  plan->set_batch_size(flags.Int("batch-size", kDefaultBatchSize));
  if (absl::Status s = FillDevices(flags, plan); !s.ok()) return s;
  auto model = ChooseModel(flags);
  if (!model.ok()) return model.status();
  if (!model->onnx_path.empty()) {
    return UsageError(
        "plans of ONNX files are made when the job is submitted: espalier train --onnx=... "
        "--detach, "
        "then espalier plan --job=ID");
  }
  *plan->mutable_graph() = std::move(model->graph);
  return Explain(context, request);
}

absl::Status RunExplain(Context& context) {
  if (absl::Status s = CheckArguments(context, 1, 1, "a job id"); !s.ok()) return s;
  proto::ExplainRequest request;
  request.set_job_id(context.flags().positional()[0]);
  return Explain(context, request);
}

}  // namespace

Command PlanCommand() {
  Command c;
  c.name = "plan";
  c.summary = "search a plan and show it, per operator and against data parallelism";
  c.usage = "plan --model=MODEL|--graph=FILE|--job=ID [--devices=N] [flags]";
  c.description =
      "For the workers that have joined, or with --devices for a machine that is not there.";
  c.flags = ModelFlags();
  for (auto& flag : SearchFlags()) c.flags.push_back(flag);
  for (auto& flag : DeviceFlags()) c.flags.push_back(flag);
  c.flags.push_back(
      {"job", FlagType::kText, "ID", "show the plan of this job, with what was measured"});
  c.examples = {
      {"for the workers that are there", "espalier plan --model=llama:llm -b 16"},
      {"for eight H200",
       "espalier plan --model=llama:hidden=4096,layers=32,heads=32 -b 64 --devices=8 "
       "--device-preset=h200"},
      {"save it, edit it, use it", "espalier plan --model=llama:llm --export-strategy=plan.json"}};
  c.run = RunPlan;
  return c;
}

Command ExplainCommand() {
  Command c;
  c.name = "explain";
  c.summary = "the plan of a job: what was chosen, predicted and measured";
  c.usage = "explain JOB";
  c.flags = {{"export-strategy", FlagType::kText, "FILE", "write the plan as JSON"}};
  c.examples = {{"of one job", "espalier explain job-1"}};
  c.run = RunExplain;
  return c;
}

}  // namespace espalier
