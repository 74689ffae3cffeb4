#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "client/cli/command.h"
#include "client/cli/devices.h"
#include "client/cli/job_id.h"
#include "client/cli/job_view.h"
#include "client/cli/loss_flags.h"
#include "client/cli/model_flags.h"
#include "client/cli/onnx_files.h"
#include "client/cli/plan_view.h"
#include "client/cli/proto_json.h"
#include "client/cli/search_flags.h"
#include "client/cli/training_flags.h"
#include "client/cli/transfer.h"
#include "client/terminal/table.h"
#include "client/terminal/text.h"

namespace espalier {
namespace {

absl::Status Explain(Context& context, v1::ExplainRequest request) {
  const ParsedFlags& flags = context.flags();
  if (flags.Has("include-costs-dot-graph") && !flags.Has("compgraph")) {
    return UsageError("--include-costs-dot-graph needs --compgraph=FILE");
  }
  request.set_page(flags.Has("html"));
  if (request.source_case() == v1::ExplainRequest::kPlan) {
    request.set_task_graph(flags.Has("taskgraph"));
    request.set_computation_graph(flags.Has("compgraph"));
    request.set_costs_in_graph(flags.Has("include-costs-dot-graph"));
  } else if (flags.Has("taskgraph") || flags.Has("compgraph")) {
    return UsageError(
        "--taskgraph and --compgraph apply to new plans; for a job export its plan, and give "
        "its model with --import-strategy");
  }
  auto client = context.client();
  if (!client.ok()) return client.status();
  if (request.source_case() == v1::ExplainRequest::kJobId) {
    auto id = JobIdOf(*client, request.job_id());
    if (!id.ok()) return id.status();
    request.set_job_id(*id);
  }
  auto reply = (*client)->Explain(request);
  if (!reply.ok()) return reply.status();
  const std::pair<const char*, std::string> files[] = {
      {"export-strategy", PlanToJson(reply->plan())},
      {"html", reply->page()},
      {"taskgraph", reply->task_graph()},
      {"compgraph", reply->computation_graph()}};
  for (const auto& [flag, text] : files) {
    if (!flags.Has(flag)) continue;
    if (absl::Status s = WriteFile(flags.Text(flag), text); !s.ok()) return s;
  }
  reply->clear_page();
  reply->clear_task_graph();
  reply->clear_computation_graph();
  v1::Job job;
  if (request.source_case() == v1::ExplainRequest::kJobId) {
    auto found = (*client)->GetJob(request.job_id());
    if (!found.ok()) return found.status();
    job = *std::move(found->mutable_job());
  }
  if (context.json()) {
    auto json = ToJson(*reply);
    if (job.best_step() > 0) {
      const auto of_job = ToJson(job);
      for (const char* field : {"best_step", "best_validation", "stopped_early"}) {
        json[field] = of_job[field];
      }
    }
    context.Document(json);
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
  if (const std::string best = DescribeBest(job); !best.empty()) {
    context.out() << best << (job.stopped_early() ? "; training stopped early" : "") << "\n";
  }
  context.out().flush();
  return absl::OkStatus();
}

// Returns the plan from a file or of a job.
absl::StatusOr<v1::Plan> FindPlan(Context& context, const std::string& name) {
  if (std::filesystem::exists(name)) return ReadPlan(name);
  auto client = context.client();
  if (!client.ok()) return client.status();
  auto id = JobIdOf(*client, name);
  if (!id.ok()) return id.status();
  v1::ExplainRequest request;
  request.set_job_id(*id);
  auto reply = (*client)->Explain(request);
  if (absl::IsNotFound(reply.status())) {
    return UsageError(absl::StrCat("\"", Printable(name), "\" is neither a file nor a job"));
  }
  if (!reply.ok()) return reply.status();
  return reply->plan();
}

// Flags that define a new plan.
std::vector<FlagSpec> NewPlanFlags() {
  std::vector<FlagSpec> flags = ModelFlags();
  for (auto& flag : SearchFlags()) flags.push_back(flag);
  flags.push_back(PrecisionFlag());
  for (auto& flag : DeviceFlags()) flags.push_back(flag);
  return flags;
}

// Flags that define a plan and how it is shown.
std::vector<FlagSpec> PlanFlags() {
  std::vector<FlagSpec> flags = NewPlanFlags();
  flags.push_back({"job", FlagType::kText, "ID", "show the plan of this job, with measurements"});
  flags.push_back({"html", FlagType::kText, "FILE",
                   "write a page with the graph, the timeline, links and memory"});
  flags.push_back(
      {"taskgraph", FlagType::kText, "FILE", "write the tasks of the simulated step for Graphviz"});
  flags.push_back({"compgraph", FlagType::kText, "FILE",
                   "write the operators and parallel operators for Graphviz"});
  flags.push_back(
      {"include-costs-dot-graph", FlagType::kSwitch, "", "include predicted costs in --compgraph"});
  return flags;
}

// Refuses flags that define a new plan if an existing one is shown: they would have no effect.
absl::Status CheckShowsJob(const ParsedFlags& flags) {
  for (const FlagSpec& flag : NewPlanFlags()) {
    if (!flags.Has(flag.name) || flag.name == "export-strategy") continue;
    return UsageError(
        absl::StrCat("--", flag.name, " applies to a new plan; a job's plan is shown unchanged"));
  }
  return absl::OkStatus();
}

absl::Status RunDiff(Context& context) {
  const std::vector<std::string>& names = context.flags().positional();
  if (names.size() != 3) return UsageError("plan diff takes two plans: files or job ids");
  for (const FlagSpec& flag : PlanFlags()) {
    if (!context.flags().Has(flag.name)) continue;
    return UsageError(
        absl::StrCat("--", flag.name, " applies to one plan; plan diff compares two"));
  }
  v1::DiffRequest request;
  request.set_name_a(names[1]);
  request.set_name_b(names[2]);
  for (const auto& [name, plan] :
       {std::pair(names[1], request.mutable_a()), std::pair(names[2], request.mutable_b())}) {
    auto found = FindPlan(context, name);
    if (!found.ok()) return found.status();
    *plan = *std::move(found);
  }
  auto client = context.client();
  if (!client.ok()) return client.status();
  auto reply = (*client)->DiffPlans(request);
  if (!reply.ok()) return reply.status();
  if (context.json()) {
    const auto json = nlohmann::ordered_json::parse(reply->json(), nullptr, false);
    if (json.is_discarded()) {
      return absl::DataLossError(
          "the coordinator sent a difference that is not JSON; omit --json for its text");
    }
    context.Document(json);
  } else {
    context.out() << Printable(reply->text(), true) << std::flush;
  }
  return absl::OkStatus();
}

absl::Status RunPlan(Context& context) {
  const ParsedFlags& flags = context.flags();
  if (!flags.positional().empty() && flags.positional()[0] == "diff") return RunDiff(context);
  if (absl::Status s = CheckArguments(context, 0, 0, ""); !s.ok()) return s;
  v1::ExplainRequest request;
  if (flags.Has("job")) {
    if (absl::Status s = CheckShowsJob(flags); !s.ok()) return s;
    request.set_job_id(flags.Text("job"));
    return Explain(context, request);
  }
  v1::PlanRequest* plan = request.mutable_plan();
  auto search = MakeSearch(flags);
  if (!search.ok()) return search.status();
  *plan->mutable_search() = *std::move(search);
  plan->set_batch_size(flags.Int("batch-size", kDefaultBatchSize));
  if (absl::Status s = FillDevices(flags, plan); !s.ok()) return s;
  auto model = ChooseModel(flags);
  if (!model.ok()) return model.status();
  auto precision = ChoosePrecision(flags);
  if (!precision.ok()) return precision.status();
  plan->set_precision(*precision);
  if (model->onnx_path.empty()) {
    *plan->mutable_graph() = std::move(model->graph);
    return Explain(context, request);
  }
  auto objective = ChooseObjective(flags);
  if (!objective.ok()) return objective.status();
  auto client = context.client();
  if (!client.ok()) return client.status();
  auto name = OnnxArtifact(UploadOnce(context, *client), model->onnx_path);
  if (!name.ok()) return name.status();
  plan->set_onnx_artifact(*name);
  *plan->mutable_objective() = *std::move(objective);
  return Explain(context, request);
}

absl::Status RunExplain(Context& context) {
  if (context.flags().positional().empty()) return RunPlan(context);
  if (absl::Status s = CheckArguments(context, 1, 1, "a job's id or name"); !s.ok()) return s;
  if (absl::Status s = CheckShowsJob(context.flags()); !s.ok()) return s;
  if (context.flags().Has("job")) return UsageError("give the job's id once, without --job");
  v1::ExplainRequest request;
  request.set_job_id(context.flags().positional()[0]);
  return Explain(context, request);
}

absl::Status RunMachines(Context& context) {
  if (absl::Status s = CheckArguments(context, 0, 1, "at most one name"); !s.ok()) return s;
  auto client = context.client();
  if (!client.ok()) return client.status();
  v1::MachinesRequest request;
  if (!context.flags().positional().empty()) request.set_name(context.flags().positional()[0]);
  request.set_devices(static_cast<int32_t>(context.flags().Int("devices", 0)));
  auto reply = (*client)->Machines(request);
  if (!reply.ok()) return reply.status();
  if (!request.name().empty()) {
    context.out() << reply->text() << std::flush;
    return absl::OkStatus();
  }
  if (context.json()) {
    context.Document(ToJson(*reply));
    return absl::OkStatus();
  }
  Table table({{"machine"}, {"a host", Align::kRight}, {"devices", Align::kRight}, {"", {}, true}});
  for (const auto& preset : reply->presets()) {
    table.Row({preset.name(), absl::StrCat(preset.per_host()),
               absl::StrCat("1-", preset.max_devices()), preset.summary()});
  }
  context.out() << table.Render(context.terminal()) << std::flush;
  return absl::OkStatus();
}

}  // namespace

Command MachinesCommand() {
  Command c;
  c.name = "machines";
  c.summary = "list machine models to plan for";
  c.usage = "machines [NAME [--devices=N]]";
  c.description =
      "With a name: prints its description in the format of --machine-model-file, to edit and "
      "plan for.";
  c.flags = {{"devices", FlagType::kInt, "N", "number of devices (one host)", 0, 1, 65536}};
  c.examples = {{"list all", "espalier machines"},
                {"a template for your own machine",
                 "espalier machines h200-cluster --devices=64 > ours.json"}};
  c.run = RunMachines;
  return c;
}

Command PlanCommand() {
  Command c;
  c.name = "plan";
  c.summary = "search for a plan and show it per operator, compared with data parallelism";
  c.usage =
      "plan --model=MODEL|--graph=FILE|--onnx=FILE|--job=ID [--devices=N] [flags]; plan diff A B";
  c.description =
      "Plans for the workers that have joined, or with --devices for hypothetical devices.";
  c.flags = PlanFlags();
  c.examples = {
      {"for the live workers", "espalier plan --model=llama:llm -b 16"},
      {"for eight H200",
       "espalier plan --model=llama:hidden=4096,layers=32,heads=32 -b 64 --devices=8 "
       "--device-preset=h200"},
      {"for two hosts of a cluster, as an HTML page",
       "espalier plan --model=llama:hidden=4096,layers=32,heads=32 -b 64 --machine=h200-cluster "
       "--devices=16 --html=plan.html"},
      {"save it, edit it, use it", "espalier plan --model=llama:llm --export-strategy=plan.json"},
      {"continue the search from it, keeping \"pinned\" operators",
       "espalier plan --model=llama:llm --search-from=plan.json"},
      {"differences between two plans", "espalier plan diff plan.json job-1"}};
  c.run = RunPlan;
  return c;
}

Command ExplainCommand() {
  Command c;
  c.name = "explain";
  c.summary = "explain a job's plan: decisions, predictions and measurements; or a model's plan";
  c.usage = "explain JOB | explain --model=MODEL|--graph=FILE|--onnx=FILE [flags]";
  c.flags = PlanFlags();
  c.examples = {{"of a job", "espalier explain job-1"},
                {"of an ONNX file", "espalier explain --onnx=cnn.onnx -b 64"}};
  c.run = RunExplain;
  return c;
}

}  // namespace espalier
