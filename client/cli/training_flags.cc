#include "client/cli/training_flags.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/cli/memory_flags.h"
#include "client/terminal/text.h"
#include "ops/operators/register_all.h"
#include "ops/optimizer/optimizer.h"

namespace espalier {
namespace {

constexpr int kRewriteBudget = 100;  // default if rules are given without a budget

template <typename T>
absl::StatusOr<T> OneOf(const std::string& flag, const std::string& given,
                        const std::vector<std::pair<std::string, T>>& choices) {
  std::vector<std::string> names;
  for (const auto& [name, value] : choices) {
    if (name == given) return value;
    names.push_back(name);
  }
  return UsageError(absl::StrCat("--", flag, " is \"", Printable(given),
                                 "\"; accepted: ", absl::StrJoin(names, ", ")));
}

const OpRegistry& Operators() {
  static const OpRegistry* operators = [] {
    auto* registry = new OpRegistry;
    RegisterAllOperators(*registry);
    return registry;
  }();
  return *operators;
}

// Returns the names of the optimizers for which `keep` is true.
template <typename Keep>
std::string OptimizerNames(Keep keep) {
  std::vector<std::string> names;
  for (const NamedUpdate& update : AllUpdates(Operators())) {
    if (keep(update)) names.push_back(update.variant->name);
  }
  return absl::StrJoin(names, ", ");
}

const AttributeSpec* FindAttribute(const OpDef& def, absl::string_view name) {
  for (const AttributeSpec& spec : def.attributes) {
    if (spec.name == name) return &spec;
  }
  return nullptr;
}

// Sets one attribute, such as "momentum=0.9" in --optimizer=sgd:momentum=0.9.
absl::Status SetAttribute(const OpDef& def, const std::string& pair, v1::Optimizer* optimizer) {
  const std::vector<std::string> parts = absl::StrSplit(pair, absl::MaxSplits('=', 1));
  const AttributeSpec* spec = FindAttribute(def, parts[0]);
  if (parts.size() != 2 || spec == nullptr) {
    return UsageError(absl::StrCat(
        "--optimizer holds \"", Printable(pair), "\"; accepted is KEY=VALUE with ",
        absl::StrJoin(def.attributes, ", ",
                      [](std::string* out, const AttributeSpec& a) { out->append(a.name); })));
  }
  v1::Attribute& attribute = (*optimizer->mutable_attributes())[spec->name];
  bool flag = false;
  double number = 0;
  if (spec->kind == AttributeKind::kBool && absl::SimpleAtob(parts[1], &flag)) {
    attribute.set_b(flag);
  } else if (spec->kind == AttributeKind::kFloat && absl::SimpleAtod(parts[1], &number)) {
    attribute.set_f(number);
  } else {
    return UsageError(absl::StrCat(
        "--optimizer: ", spec->name, " is \"", Printable(parts[1]),
        "\"; accepted: ", spec->kind == AttributeKind::kBool ? "true, false" : "a number"));
  }
  return absl::OkStatus();
}

// Stores the optimizer's default learning rate in *default_rate.
absl::Status FillUpdate(const ParsedFlags& flags, v1::Optimizer* optimizer, double* default_rate) {
  const std::string given = flags.Text("optimizer", "adamw");
  const std::vector<std::string> parts = absl::StrSplit(given, absl::MaxSplits(':', 1));
  const std::vector<NamedUpdate> all = AllUpdates(Operators());
  const auto found = std::find_if(all.begin(), all.end(), [&](const NamedUpdate& update) {
    return update.variant->name == parts[0];
  });
  if (found == all.end()) {
    return UsageError(absl::StrCat("--optimizer is \"", Printable(parts[0]), "\"; accepted: ",
                                   OptimizerNames([](const NamedUpdate&) { return true; })));
  }
  optimizer->set_name(parts[0]);
  *default_rate = found->variant->learning_rate;
  if (parts.size() > 1) {
    for (absl::string_view pair : absl::StrSplit(parts[1], ',', absl::SkipEmpty())) {
      absl::Status set = SetAttribute(*found->def, std::string(pair), optimizer);
      if (!set.ok()) return set;
    }
  }
  const std::pair<const char*, const char*> shortcuts[] = {
      {"momentum", "momentum"}, {"wd", "weight_decay"}, {"nesterov", "nesterov"}};
  for (const auto& [flag, attribute] : shortcuts) {
    if (!flags.Has(flag)) continue;
    const AttributeSpec* spec = FindAttribute(*found->def, attribute);
    if (spec == nullptr) {
      return UsageError(absl::StrCat("--", flag, " needs an --optimizer that has it: ",
                                     OptimizerNames([&](const NamedUpdate& update) {
                                       return FindAttribute(*update.def, attribute) != nullptr;
                                     })));
    }
    v1::Attribute& value = (*optimizer->mutable_attributes())[attribute];
    if (spec->kind == AttributeKind::kBool) {
      value.set_b(true);
    } else {
      value.set_f(flags.Number(flag, 0));
    }
  }
  return absl::OkStatus();
}

// Parses --l1=0.001 (all parameters) and --l2=fc*:1e-4 (some).
absl::Status FillRegularizers(const ParsedFlags& flags, v1::Optimizer* optimizer) {
  for (const char* norm : {"l1", "l2"}) {
    for (const std::string& given : flags.Values(norm)) {
      const size_t colon = given.rfind(':');
      v1::Regularizer* regularizer = optimizer->add_regularizers();
      if (colon != std::string::npos) regularizer->set_parameter(given.substr(0, colon));
      double factor = 0;
      if (!absl::SimpleAtod(given.substr(colon == std::string::npos ? 0 : colon + 1), &factor) ||
          !(factor >= 0)) {
        return UsageError(
            absl::StrCat("--", norm, " is \"", Printable(given),
                         "\"; accepted: X or PARAMETER:X with X 0 or more, as fc*:1e-4"));
      }
      norm[1] == '1' ? regularizer->set_l1(factor) : regularizer->set_l2(factor);
    }
  }
  if (flags.Has("report-penalties") && optimizer->regularizers().empty()) {
    return UsageError("--report-penalties needs --l1 or --l2");
  }
  optimizer->set_report_penalties(flags.Has("report-penalties"));
  return absl::OkStatus();
}

absl::Status FillSchedule(const ParsedFlags& flags, int64_t steps, double default_rate,
                          v1::LearningRateSchedule* schedule) {
  using Schedule = v1::LearningRateSchedule;
  auto shape = OneOf<Schedule::Kind>("schedule", flags.Text("schedule", "constant"),
                                     {{"constant", Schedule::CONSTANT},
                                      {"step", Schedule::STEP},
                                      {"cosine", Schedule::COSINE},
                                      {"linear", Schedule::LINEAR},
                                      {"polynomial", Schedule::POLYNOMIAL},
                                      {"one-cycle", Schedule::ONE_CYCLE}});
  if (!shape.ok()) return shape.status();
  const std::pair<const char*, Schedule::Kind> only[] = {{"lr-step", Schedule::STEP},
                                                         {"lr-gamma", Schedule::STEP},
                                                         {"lr-power", Schedule::POLYNOMIAL},
                                                         {"lr-rise", Schedule::ONE_CYCLE}};
  for (const auto& [flag, kind] : only) {
    if (!flags.Has(flag) || *shape == kind) continue;
    return UsageError(absl::StrCat("--", flag, " needs --schedule=",
                                   kind == Schedule::STEP         ? "step"
                                   : kind == Schedule::POLYNOMIAL ? "polynomial"
                                                                  : "one-cycle"));
  }
  if (flags.Has("min-lr") && *shape == Schedule::CONSTANT) {
    return UsageError("--min-lr needs a --schedule that decays, such as cosine");
  }
  if (flags.Has("warmup") && *shape == Schedule::ONE_CYCLE) {
    return UsageError(
        "--warmup and --schedule=one-cycle, which has its own warm-up, exclude each other");
  }
  schedule->set_kind(*shape);
  const double peak = flags.Number("lr", default_rate);
  schedule->set_peak(peak);
  schedule->set_warmup_steps(flags.Int("warmup", 0));
  // With epochs, only the coordinator, which has the dataset, knows the number of steps.
  if (*shape != Schedule::CONSTANT && *shape != Schedule::STEP) schedule->set_total_steps(steps);
  const double floor = *shape == Schedule::COSINE      ? peak / 10
                       : *shape == Schedule::ONE_CYCLE ? peak / 25 / 1e4
                                                       : 0;
  schedule->set_floor(flags.Number("min-lr", floor));
  if (*shape == Schedule::STEP) {
    if (!flags.Has("lr-step")) return UsageError("--schedule=step needs --lr-step=N");
    schedule->set_step_size(flags.Int("lr-step", 0));
    schedule->set_gamma(flags.Number("lr-gamma", 0.1));
  }
  if (*shape == Schedule::POLYNOMIAL) schedule->set_power(flags.Number("lr-power", 1));
  if (*shape == Schedule::ONE_CYCLE) schedule->set_rise(flags.Number("lr-rise", 0.3));
  if (steps > 0 && schedule->warmup_steps() > steps) {
    return UsageError(absl::StrCat("--warmup is ", schedule->warmup_steps(), ", more than all ",
                                   steps, " steps"));
  }
  return absl::OkStatus();
}

absl::Status FillLossScale(const ParsedFlags& flags, v1::Optimizer* optimizer) {
  if (!flags.Has("loss-scale")) return absl::OkStatus();
  const std::string given = flags.Text("loss-scale");
  v1::LossScale* scale = optimizer->mutable_loss_scale();
  double fixed = 0;
  if (given == "dynamic") return absl::OkStatus();
  if (absl::SimpleAtod(given, &fixed) && fixed > 0) {
    scale->set_initial(fixed);
  } else {
    return UsageError(absl::StrCat("--loss-scale is \"", Printable(given),
                                   "\"; accepted: a power of two, or dynamic"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status FillOptimizer(const ParsedFlags& flags, int64_t steps, v1::Optimizer* optimizer) {
  double default_rate = 0;
  if (absl::Status s = FillUpdate(flags, optimizer, &default_rate); !s.ok()) return s;
  if (absl::Status s = FillRegularizers(flags, optimizer); !s.ok()) return s;
  optimizer->set_clip_norm(flags.Number("clip-norm", 0));
  if (absl::Status s = FillLossScale(flags, optimizer); !s.ok()) return s;
  absl::Status s = FillSchedule(flags, steps, default_rate, optimizer->mutable_learning_rate());
  if (!s.ok()) return s;
  // Only values that the operator refuses remain.
  s = CheckOptimizer(Operators(), *optimizer);
  return s.ok() ? s : UsageError(std::string(s.message()));
}

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

FlagSpec PrecisionFlag() {
  return {"precision", FlagType::kText, "TYPE",
          "bf16 or f16: mixed precision, parameters stay f32 (the types of the graph)"};
}

absl::StatusOr<v1::DataType> ChoosePrecision(const ParsedFlags& flags) {
  if (!flags.Has("precision")) return v1::DATA_TYPE_UNSPECIFIED;
  return OneOf<v1::DataType>("precision", flags.Text("precision"),
                             {{"f32", v1::F32}, {"bf16", v1::BF16}, {"f16", v1::F16}});
}

std::vector<FlagSpec> OptimizerFlags() {
  std::vector<std::string> each;
  for (const NamedUpdate& update : AllUpdates(Operators())) {
    each.push_back(absl::StrCat(update.variant->name, " ", update.variant->learning_rate));
  }
  const std::string rates = absl::StrJoin(each, ", ");
  return {
      {"lr", FlagType::kNumber, "LR", "learning rate, the peak of the schedule (" + rates + ")", 0,
       0},
      {"wd", FlagType::kNumber, "WD", "weight decay (AdamW 0.01, others 0)", 0, 0},
      {"optimizer", FlagType::kText, "NAME[:KEY=VALUE,...]",
       OptimizerNames([](const NamedUpdate&) { return true; }) + " (adamw)"},
      {"momentum", FlagType::kNumber, "M", "momentum of SGD and RMSprop (0)", 0, 0, 1},
      {"nesterov", FlagType::kSwitch, "", "use Nesterov momentum, for SGD"},
      {"clip-norm", FlagType::kNumber, "X", "clip the gradient's global norm to X (off)", 0, 0},
      {"loss-scale", FlagType::kText, "N",
       "loss scale, a power of two, or dynamic (with --precision=f16 dynamic, else off)"},
      {"l1", FlagType::kText, "[PARAMETER:]X",
       "L1 penalty: add X * sum |p| to the minimized loss; PARAMETER is a name, or a prefix and *",
       0, 0, 0, true},
      {"l2", FlagType::kText, "[PARAMETER:]X", "L2 penalty: add X * sum p^2 to the minimized loss",
       0, 0, 0, true},
      {"report-penalties", FlagType::kSwitch, "", "include the penalties in the reported loss"},
      {"schedule", FlagType::kText, "NAME",
       "constant, step, cosine, linear, polynomial or one-cycle (constant)"},
      {"warmup", FlagType::kInt, "N", "warm-up steps from 0 to the learning rate (0)", 0, 0, 1e12},
      {"min-lr", FlagType::kNumber, "LR",
       "final learning rate of the schedule (cosine: a tenth of --lr; one-cycle: a 250000th; "
       "others: 0)",
       0, 0},
      {"lr-step", FlagType::kInt, "N", "steps between decays, for --schedule=step", 0, 1, 1e12},
      {"lr-gamma", FlagType::kNumber, "G", "decay factor, for --schedule=step (0.1)", 0, 0, 1},
      {"lr-power", FlagType::kNumber, "P", "exponent, for --schedule=polynomial (1)", 0, 0, 100},
      {"lr-rise", FlagType::kNumber, "F", "fraction of the steps in which one-cycle rises (0.3)", 0,
       0, 1},
  };
}

std::vector<FlagSpec> TrainingFlags() {
  std::vector<FlagSpec> flags = {
      {"dataset", FlagType::kText, "FILE", "text, npz or npy file to upload, or artifact:NAME",
       'd'},
      {"dataset-format", FlagType::kText, "FORMAT", "text or npz (by the file's extension)"},
      {"no-upload", FlagType::kSwitch, "", "--dataset is an absolute path that every worker sees"},
      {"input", FlagType::kText, "NAME=COLUMN",
       "dataset column for a graph input (the column of the same name)", 0, 0, 0, true},
      {"holdout", FlagType::kNumber, "F",
       "fraction of the examples, at the end, held out for "
       "evaluation (0.1)",
       0, 0, 0.9},
      {"epochs", FlagType::kInt, "N", "passes over the dataset (1)", 'e', 1, 1e9},
      {"steps", FlagType::kInt, "N", "instead of --epochs", 0, 1, 1e12},
      {"print-freq", FlagType::kInt, "N", "without a terminal: a line every N steps (every 10 s)",
       'p', 1, 1e12},
      {"checkpoint-every", FlagType::kInt, "N",
       "steps between checkpoints (only the last; five lost workers with none between end a job)",
       0, 0, 1e12},
      {"name", FlagType::kText, "NAME", "name of the job and of the trained model"},
  };
  const std::vector<FlagSpec> optimizer = OptimizerFlags();
  flags.insert(flags.end(), optimizer.begin(), optimizer.end());
  flags.push_back(PrecisionFlag());
  return flags;
}

absl::Status FillTraining(const ParsedFlags& flags, v1::TrainingSpec* spec) {
  if (flags.Has("epochs") && flags.Has("steps"))
    return UsageError("give --epochs or --steps, not both");
  if (flags.Has("steps")) {
    spec->set_steps(flags.Int("steps", 0));
  } else {
    spec->set_epochs(flags.Int("epochs", 1));
  }
  auto search = MakeSearch(flags);
  if (!search.ok()) return search.status();
  *spec->mutable_search() = *std::move(search);
  spec->set_name(flags.Text("name"));
  spec->set_output_model(flags.Text("name"));
  spec->set_batch_size(flags.Int("batch-size", kDefaultBatchSize));
  spec->set_seed(static_cast<uint64_t>(flags.Int("seed", 0)));
  spec->set_checkpoint_every_steps(flags.Int("checkpoint-every", 0));
  auto precision = ChoosePrecision(flags);
  if (!precision.ok()) return precision.status();
  spec->set_precision(*precision);
  spec->mutable_dataset()->set_holdout_fraction(flags.Number("holdout", 0.1));
  for (const std::string& pair : flags.Values("input")) {
    const std::vector<std::string> parts = absl::StrSplit(pair, absl::MaxSplits('=', 1));
    if (parts.size() != 2 || parts[0].empty() || parts[1].empty()) {
      return UsageError(
          absl::StrCat("--input is \"", Printable(pair), "\"; accepted: NAME=COLUMN, as labels=y"));
    }
    (*spec->mutable_dataset()->mutable_columns())[parts[0]] = parts[1];
  }
  return FillOptimizer(flags, spec->steps(), spec->mutable_optimizer());
}

absl::StatusOr<v1::Dataset::Format> DatasetFormat(const ParsedFlags& flags,
                                                  const std::string& path) {
  if (flags.Has("dataset-format")) {
    return OneOf<v1::Dataset::Format>("dataset-format", flags.Text("dataset-format"),
                                      {{"text", v1::Dataset::TEXT}, {"npz", v1::Dataset::NPZ}});
  }
  if (absl::EndsWith(path, ".npz") || absl::EndsWith(path, ".npy")) return v1::Dataset::NPZ;
  // Parquet, tar, IDX and similar formats would silently be trained on byte by byte.
  std::error_code error;
  std::string start(std::filesystem::is_regular_file(path, error) ? 1 << 16 : 0, '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(start.data(), static_cast<std::streamsize>(start.size()));
  start.resize(static_cast<size_t>(file.gcount()));
  if (const size_t at = start.find('\0'); at != std::string::npos) {
    return UsageError(
        absl::StrCat("--dataset is \"", Printable(path), "\", which is not text: byte ", at,
                     " is 0; accepted: text, or arrays as numpy.savez writes them (.npz, .npy); "
                     "--dataset-format=text to train on these bytes anyway"));
  }
  return v1::Dataset::TEXT;
}

}  // namespace espalier
