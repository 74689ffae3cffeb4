#include "client/cli/training_flags.h"

#include <google/protobuf/util/json_util.h>

#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/terminal/text.h"

namespace espalier {
namespace {

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

absl::StatusOr<proto::Plan> ReadPlan(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  if (!in) return UsageError(absl::StrCat("cannot read ", path));
  proto::Plan plan;
  const auto status = google::protobuf::util::JsonStringToMessage(text.str(), &plan);
  if (!status.ok()) {
    return UsageError(absl::StrCat(path, " holds no plan: ", std::string(status.message()),
                                   "; accepted is what --export-strategy writes"));
  }
  return plan;
}

absl::Status FillOptimizer(const ParsedFlags& flags, int64_t steps, proto::Optimizer* optimizer) {
  auto kind = OneOf<proto::Optimizer::Kind>("optimizer", flags.Text("optimizer", "adamw"),
                                            {{"sgd", proto::Optimizer::SGD},
                                             {"adam", proto::Optimizer::ADAM},
                                             {"adamw", proto::Optimizer::ADAMW}});
  if (!kind.ok()) return kind.status();
  const bool sgd = *kind == proto::Optimizer::SGD;
  if (flags.Has("momentum") && !sgd) return UsageError("--momentum needs --optimizer=sgd");
  optimizer->set_kind(*kind);
  optimizer->set_momentum(flags.Number("momentum", 0));
  optimizer->set_weight_decay(flags.Number("wd", *kind == proto::Optimizer::ADAMW ? 0.01
                                                 : sgd                            ? 1e-4
                                                                                  : 0));
  optimizer->set_clip_norm(flags.Number("clip-norm", 0));

  auto* schedule = optimizer->mutable_learning_rate();
  auto shape =
      OneOf<proto::LearningRateSchedule::Kind>("schedule", flags.Text("schedule", "constant"),
                                               {{"constant", proto::LearningRateSchedule::CONSTANT},
                                                {"cosine", proto::LearningRateSchedule::COSINE}});
  if (!shape.ok()) return shape.status();
  schedule->set_kind(*shape);
  schedule->set_peak(flags.Number("lr", sgd ? 0.01 : 1e-3));
  schedule->set_warmup_steps(flags.Int("warmup", 0));
  if (*shape == proto::LearningRateSchedule::COSINE) {
    // With epochs only the coordinator, which has the dataset, knows how many steps there are.
    schedule->set_total_steps(steps);
    schedule->set_floor(flags.Number("min-lr", schedule->peak() / 10));
  } else if (flags.Has("min-lr")) {
    return UsageError("--min-lr needs --schedule=cosine");
  }
  if (steps > 0 && schedule->warmup_steps() > steps) {
    return UsageError(absl::StrCat("--warmup is ", schedule->warmup_steps(), ", more than all ",
                                   steps, " steps"));
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<FlagSpec> SearchFlags() {
  return {
      {"batch-size", FlagType::kInt, "N", "examples of one step, over all devices (16)", 'b', 1,
       1 << 24},
      {"budget", FlagType::kInt, "N", "proposals of the search (chosen by the size of the graph)",
       0, 0, 1e9},
      {"alpha", FlagType::kNumber, "A",
       "exp(-alpha * milliseconds worse) is how readily it goes uphill (1.0)", 0, 0},
      {"seed", FlagType::kInt, "N", "of the run and of the search (0)", 0, 0},
      {"only-data-parallel", FlagType::kSwitch, "", "no search: the samples over all devices"},
      {"single-device", FlagType::kSwitch, "", "no search: everything on one device"},
      {"enable-parameter-parallel", FlagType::kSwitch, "",
       "search parameter dimensions (the default)"},
      {"disable-parameter-parallel", FlagType::kSwitch, "", "do not"},
      {"enable-attribute-parallel", FlagType::kSwitch, "",
       "search attribute dimensions (the default)"},
      {"disable-attribute-parallel", FlagType::kSwitch, "", "do not"},
      {"full-simulation", FlagType::kSwitch, "",
       "simulate every proposal whole instead of what changed"},
      {"max-devices", FlagType::kInt, "N", "use at most so many (all)", 0, 1, 1 << 16},
      {"import-strategy", FlagType::kText, "FILE", "use this plan instead of searching"},
      {"export-strategy", FlagType::kText, "FILE", "write the plan as JSON"},
  };
}

absl::StatusOr<proto::SearchOptions> MakeSearch(const ParsedFlags& flags) {
  proto::SearchOptions search;
  const int chosen =
      flags.Has("only-data-parallel") + flags.Has("single-device") + flags.Has("import-strategy");
  if (chosen > 1) {
    return UsageError(
        "give at most one of --only-data-parallel, --single-device, --import-strategy");
  }
  for (const char* axis : {"parameter", "attribute"}) {
    if (flags.Has(absl::StrCat("enable-", axis, "-parallel")) &&
        flags.Has(absl::StrCat("disable-", axis, "-parallel"))) {
      return UsageError(absl::StrCat("--enable-", axis, "-parallel and --disable-", axis,
                                     "-parallel exclude each other"));
    }
  }
  if (flags.Has("only-data-parallel")) search.set_strategy(proto::SearchOptions::DATA_PARALLEL);
  if (flags.Has("single-device")) search.set_strategy(proto::SearchOptions::SINGLE_DEVICE);
  if (flags.Has("import-strategy")) {
    auto plan = ReadPlan(flags.Text("import-strategy"));
    if (!plan.ok()) return plan.status();
    search.set_strategy(proto::SearchOptions::IMPORTED);
    *search.mutable_imported() = *std::move(plan);
  }
  search.set_budget(flags.Int("budget", 0));
  search.set_alpha(flags.Number("alpha", 0));
  search.set_seed(static_cast<uint64_t>(flags.Int("seed", 0)));
  search.set_disable_parameter_parallel(flags.Has("disable-parameter-parallel"));
  search.set_disable_attribute_parallel(flags.Has("disable-attribute-parallel"));
  search.set_only_full_simulation(flags.Has("full-simulation"));
  search.set_max_devices(static_cast<int32_t>(flags.Int("max-devices", 0)));
  return search;
}

std::vector<FlagSpec> TrainingFlags() {
  return {
      {"dataset", FlagType::kText, "FILE", "text, npz or npy, which is uploaded; or artifact:NAME",
       'd'},
      {"dataset-format", FlagType::kText, "FORMAT", "text or npz (by the ending of the name)"},
      {"no-upload", FlagType::kSwitch, "", "--dataset is an absolute path that every worker sees"},
      {"input", FlagType::kText, "NAME=COLUMN",
       "the column for a graph input (the one of its name)", 0, 0, 0, true},
      {"holdout", FlagType::kNumber, "F", "last part of the examples kept for the evaluation (0.1)",
       0, 0, 0.9},
      {"epochs", FlagType::kInt, "N", "times through the dataset (1)", 'e', 1, 1e9},
      {"steps", FlagType::kInt, "N", "instead of --epochs", 0, 1, 1e12},
      {"print-freq", FlagType::kInt, "N", "without a terminal: a line every N steps (every 10 s)",
       'p', 1, 1e12},
      {"lr", FlagType::kNumber, "LR", "learning rate (1e-3; SGD 0.01)", 0, 0},
      {"wd", FlagType::kNumber, "WD", "weight decay (AdamW 0.01, SGD 1e-4, Adam 0)", 0, 0},
      {"optimizer", FlagType::kText, "NAME", "sgd, adam or adamw (adamw)"},
      {"momentum", FlagType::kNumber, "M", "of SGD (0)", 0, 0, 1},
      {"clip-norm", FlagType::kNumber, "X", "largest global norm of the gradient (off)", 0, 0},
      {"schedule", FlagType::kText, "NAME", "constant or cosine (constant)"},
      {"warmup", FlagType::kInt, "N", "steps from 0 to the learning rate (0)", 0, 0, 1e12},
      {"min-lr", FlagType::kNumber, "LR", "where cosine ends (a tenth of --lr)", 0, 0},
      {"checkpoint-every", FlagType::kInt, "N", "steps between checkpoints (only the last)", 0, 0,
       1e12},
      {"name", FlagType::kText, "NAME", "of the job and of the trained model"},
  };
}

absl::Status FillTraining(const ParsedFlags& flags, proto::TrainingSpec* spec) {
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

absl::StatusOr<proto::Dataset::Format> DatasetFormat(const ParsedFlags& flags,
                                                     const std::string& path) {
  if (flags.Has("dataset-format")) {
    return OneOf<proto::Dataset::Format>(
        "dataset-format", flags.Text("dataset-format"),
        {{"text", proto::Dataset::TEXT}, {"npz", proto::Dataset::NPZ}});
  }
  const bool arrays = absl::EndsWith(path, ".npz") || absl::EndsWith(path, ".npy");
  return arrays ? proto::Dataset::NPZ : proto::Dataset::TEXT;
}

}  // namespace espalier
