#include "client/cli/training_flags.h"

#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cli/choice_flag.h"
#include "client/cli/column_flags.h"
#include "client/cli/optimizer_flags.h"
#include "client/cli/record_flags.h"
#include "client/cli/search_flags.h"
#include "client/cli/time_flags.h"
#include "client/cli/validation_flags.h"
#include "client/terminal/text.h"

namespace espalier {

FlagSpec PrecisionFlag() {
  return {"precision", FlagType::kText, "TYPE",
          "bf16 or f16: mixed precision, parameters stay f32 (the types of the graph)"};
}

absl::StatusOr<v1::DataType> ChoosePrecision(const ParsedFlags& flags) {
  if (!flags.Has("precision")) return v1::DATA_TYPE_UNSPECIFIED;
  return OneOf<v1::DataType>("precision", flags.Text("precision"),
                             {{"f32", v1::F32}, {"bf16", v1::BF16}, {"f16", v1::F16}});
}

std::vector<FlagSpec> TrainingFlags() {
  std::vector<FlagSpec> flags = {
      {"dataset", FlagType::kText, "FILE",
       "text, npz or npy file to upload, artifact:NAME or s3://BUCKET/KEY", 'd'},
      {"dataset-format", FlagType::kText, "FORMAT", "text or npz (by the file's extension)"},
      {"no-upload", FlagType::kSwitch, "",
       "--dataset is an absolute path on the hosts of the daemon and of every worker, beneath "
       "their --dataset-root"},
      ColumnFlag(),
      {"holdout", FlagType::kNumber, "F",
       "fraction of the examples, at the end, held out for evaluation (0.1; with --validation 0)",
       0, 0, 0.9},
      {"no-shuffle", FlagType::kSwitch, "",
       "keep the order of the training examples, in every epoch"},
      {"epochs", FlagType::kInt, "N", "passes over the dataset (1)", 'e', 1, 1e9},
      {"steps", FlagType::kInt, "N", "instead of --epochs", 0, 1, 1e12},
      {"print-freq", FlagType::kInt, "N", "without a terminal: a line every N steps (every 10 s)",
       'p', 1, 1e12},
      {"checkpoint-every", FlagType::kInt, "N",
       "steps between checkpoints, besides those of --record; five lost workers with none between "
       "end a job",
       0, 0, 1e12},
      {"freeze", FlagType::kText, "PATTERN",
       "do not train parameters of this name; * stands for any characters", 0, 0, 0, true},
      {"train-only", FlagType::kText, "PATTERN",
       "of the parameters that would be trained, train only those of this name; a name without * "
       "is trained in any case",
       0, 0, 0, true},
      {"min-devices", FlagType::kInt, "N",
       "wait for at least N workers, also after some were lost (1); more are taken up to "
       "--max-devices",
       0, 1, 1 << 16},
      {"priority", FlagType::kInt, "N",
       "of two jobs of an owner the one of higher priority starts first (0); below 0, other "
       "owners' "
       "jobs go first, too",
       0, -1000, 1000},
      {"time-limit", FlagType::kText, "TIME",
       "end the job, with a checkpoint, once it has had workers for so long: 30m, 2h, 1d12h"},
      {"name", FlagType::kText, "NAME",
       "name of the job and of the trained model; if there is a model of that name, this one is "
       "its "
       "next version, NAME@2"},
  };
  for (const FlagSpec& flag : RecordFlags()) flags.push_back(flag);
  for (const FlagSpec& flag : ValidationFlags()) flags.push_back(flag);
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
  spec->set_priority(static_cast<int32_t>(flags.Int("priority", 0)));
  if (flags.Has("time-limit")) {
    const auto limit = DurationFlag("time-limit", flags.Text("time-limit"));
    if (!limit.ok()) return limit.status();
    spec->set_time_limit_seconds(absl::ToDoubleSeconds(*limit));
  }
  spec->set_min_devices(static_cast<int32_t>(flags.Int("min-devices", 0)));
  spec->set_batch_size(flags.Int("batch-size", kDefaultBatchSize));
  spec->set_seed(static_cast<uint64_t>(flags.Int("seed", 0)));
  spec->set_checkpoint_every_steps(flags.Int("checkpoint-every", 0));
  auto precision = ChoosePrecision(flags);
  if (!precision.ok()) return precision.status();
  spec->set_precision(*precision);
  for (const std::string& pattern : flags.Values("freeze")) spec->add_freeze(pattern);
  for (const std::string& pattern : flags.Values("train-only")) spec->add_train_only(pattern);
  if (absl::Status s = FillRecord(flags, spec); !s.ok()) return s;
  if (absl::Status s = FillValidation(flags, spec); !s.ok()) return s;
  spec->mutable_dataset()->set_holdout_fraction(
      flags.Number("holdout", flags.Has("validation") ? 0 : 0.1));
  if (flags.Has("no-shuffle")) spec->mutable_dataset()->set_shuffle(false);
  const auto columns = ColumnsOf(flags);
  if (!columns.ok()) return columns.status();
  spec->mutable_dataset()->mutable_columns()->insert(columns->begin(), columns->end());
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
