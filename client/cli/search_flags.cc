#include "client/cli/search_flags.h"

#include <google/protobuf/util/json_util.h>

#include "absl/strings/str_cat.h"
#include "client/cli/memory_flags.h"

namespace espalier {
namespace {

constexpr int kRewriteBudget = 100;  // default if rules are given without a budget

}  // namespace

absl::StatusOr<v1::Plan> ReadPlan(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadFile(path);
  if (!text.ok()) return text.status();
  v1::Plan plan;
  const auto status = google::protobuf::util::JsonStringToMessage(*text, &plan);
  if (!status.ok()) {
    return UsageError(absl::StrCat(path, " holds no plan: ", std::string(status.message()),
                                   "; accepted: what --export-strategy writes"));
  }
  return plan;
}

std::vector<FlagSpec> SearchFlags() {
  std::vector<FlagSpec> flags = {
      {"batch-size", FlagType::kInt, "N", "examples per step, over all devices (16)", 'b', 1,
       1 << 24},
      {"budget",
       FlagType::kInt,
       "N",
       "search proposals (chosen by the graph's size)",
       0,
       0,
       1e8,
       false,
       {"search-budget"}},
      {"alpha",
       FlagType::kNumber,
       "A",
       "use FlexFlow's MCMC search, which accepts worse plans with probability exp(-alpha * "
       "milliseconds) (simulated annealing)",
       0,
       0,
       1e9,
       false,
       {"search-alpha"}},
      {"seed", FlagType::kInt, "N", "random seed of the run and the search (0)", 0, 0},
      {"rewrite-budget", FlagType::kInt, "N",
       "also search graph rewrites: number of graphs tried for each distinct subgraph (0; 100 "
       "with --substitution-json)",
       0, 0, 1000000},
      {"rewrite-alpha", FlagType::kNumber, "A",
       "prune graphs slower than the best one by this factor (1.05)", 0, 1, 100},
      {"substitution-json", FlagType::kText, "FILE",
       "additional rewrite rules, in the format of ops/rewrite/rule.h; each is tested"},
      {"memory-search", FlagType::kSwitch, "", "also show the fastest plan for each memory size"},
      {"only-data-parallel", FlagType::kSwitch, "", "no search: data parallelism over all devices"},
      {"single-device", FlagType::kSwitch, "", "no search: everything on one device"},
      {"enable-parameter-parallel", FlagType::kSwitch, "",
       "search parameter dimensions (the default)"},
      {"disable-parameter-parallel", FlagType::kSwitch, "", "do not"},
      {"enable-attribute-parallel", FlagType::kSwitch, "",
       "search attribute dimensions (the default)"},
      {"disable-attribute-parallel", FlagType::kSwitch, "", "do not"},
      {"full-simulation", FlagType::kSwitch, "",
       "simulate every proposal in full instead of incrementally"},
      {"max-devices", FlagType::kInt, "N", "use at most N devices (all)", 0, 1, 1 << 16},
      {"pipeline-stages", FlagType::kInt, "N",
       "pipeline parallelism with N stages, each on its own devices (none)", 0, 1, 128},
      {"micro-batches", FlagType::kInt, "N",
       "micro-batches per step, with gradient accumulation (1; several in a pipeline)", 0, 1, 4096},
      {"zero-stage", FlagType::kInt, "N",
       "what is sharded over replicas: 0 nothing, 1 optimizer state, 2 also gradients, 3 also "
       "parameters (0, or, if memory is short, the fastest)",
       0, 0, 3},
      {"import-strategy",
       FlagType::kText,
       "FILE",
       "use this plan instead of searching",
       0,
       0,
       0,
       false,
       {"import"}},
      {"search-from", FlagType::kText, "FILE",
       "start the search from this plan; operators with \"pinned\": true stay unchanged"},
      {"export-strategy",
       FlagType::kText,
       "FILE",
       "write the plan as JSON",
       0,
       0,
       0,
       false,
       {"export"}},
  };
  for (FlagSpec& flag : MemoryFlags()) flags.push_back(std::move(flag));
  return flags;
}

absl::StatusOr<v1::SearchOptions> MakeSearch(const ParsedFlags& flags) {
  v1::SearchOptions search;
  const int chosen = flags.Has("only-data-parallel") + flags.Has("single-device") +
                     flags.Has("import-strategy") + flags.Has("search-from");
  if (chosen > 1) {
    return UsageError(
        "give at most one of --only-data-parallel, --single-device, --import-strategy, "
        "--search-from");
  }
  if (flags.Has("budget") && flags.Int("budget", 0) == 0) {
    return UsageError(
        "--budget is 0, which searches nothing; accepted: 1 to 1e8 proposals, or leave it "
        "out (chosen by the size of the graph); for no search give --only-data-parallel or "
        "--single-device");
  }
  for (const char* axis : {"parameter", "attribute"}) {
    if (flags.Has(absl::StrCat("enable-", axis, "-parallel")) &&
        flags.Has(absl::StrCat("disable-", axis, "-parallel"))) {
      return UsageError(absl::StrCat("--enable-", axis, "-parallel and --disable-", axis,
                                     "-parallel exclude each other"));
    }
  }
  if (flags.Has("only-data-parallel")) search.set_strategy(v1::SearchOptions::DATA_PARALLEL);
  if (flags.Has("single-device")) search.set_strategy(v1::SearchOptions::SINGLE_DEVICE);
  if (flags.Has("import-strategy")) {
    auto plan = ReadPlan(flags.Text("import-strategy"));
    if (!plan.ok()) return plan.status();
    search.set_strategy(v1::SearchOptions::IMPORTED);
    *search.mutable_imported() = *std::move(plan);
  }
  if (flags.Has("search-from")) {
    auto plan = ReadPlan(flags.Text("search-from"));
    if (!plan.ok()) return plan.status();
    *search.mutable_imported() = *std::move(plan);
  }
  if (flags.Has("budget")) search.set_budget(flags.Int("budget", 1));
  search.set_alpha(flags.Number("alpha", 0));
  search.set_seed(static_cast<uint64_t>(flags.Int("seed", 0)));
  search.set_rewrite_budget(static_cast<int32_t>(flags.Int("rewrite-budget", 0)));
  search.set_rewrite_alpha(flags.Number("rewrite-alpha", 0));
  search.set_memory_search(flags.Has("memory-search"));
  if (flags.Has("substitution-json")) {
    auto rules = ReadFile(flags.Text("substitution-json"));
    if (!rules.ok()) return rules.status();
    search.set_substitutions(*std::move(rules));
    if (!flags.Has("rewrite-budget")) search.set_rewrite_budget(kRewriteBudget);
  }
  search.set_disable_parameter_parallel(flags.Has("disable-parameter-parallel"));
  search.set_disable_attribute_parallel(flags.Has("disable-attribute-parallel"));
  search.set_only_full_simulation(flags.Has("full-simulation"));
  search.set_max_devices(static_cast<int32_t>(flags.Int("max-devices", 0)));
  search.set_pipeline_stages(static_cast<int32_t>(flags.Int("pipeline-stages", 0)));
  if (flags.Has("micro-batches")) {
    search.set_micro_batches(static_cast<int32_t>(flags.Int("micro-batches", 1)));
  }
  if (flags.Has("zero-stage")) {
    search.set_zero_stage(static_cast<int32_t>(flags.Int("zero-stage", 0)));
  }
  if (absl::Status s = FillMemory(flags, &search); !s.ok()) return s;
  return search;
}

}  // namespace espalier
