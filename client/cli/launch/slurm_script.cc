#include "client/cli/launch/slurm_script.h"

#include <algorithm>
#include <filesystem>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/cli/launch/shell_quote.h"
#include "client/terminal/text.h"

namespace espalier {
namespace {

// The seconds of a time limit as sbatch takes it: "30" (minutes), "10:00", "1:00:00", "2-12",
// "2-12:30", "2-12:30:00". Nothing if it is none of these, such as UNLIMITED.
std::optional<int64_t> SecondsOf(const std::string& limit) {
  std::vector<std::string> days = absl::StrSplit(limit, '-');
  if (days.size() > 2) return std::nullopt;
  std::vector<std::string> parts = absl::StrSplit(days.back(), ':');
  if (parts.size() > 3) return std::nullopt;
  std::vector<int64_t> numbers;
  for (const std::string& part : parts) {
    int64_t number = 0;
    if (!absl::SimpleAtoi(part, &number) || number < 0 || number > 1'000'000) return std::nullopt;
    numbers.push_back(number);
  }
  int64_t whole_days = 0;
  if (days.size() == 2) {
    if (!absl::SimpleAtoi(days[0], &whole_days) || whole_days < 0 || whole_days > 10'000) {
      return std::nullopt;
    }
  } else if (numbers.size() < 3) {
    numbers.insert(numbers.begin(), 0);  // without days it begins with minutes
  }
  numbers.resize(3);
  return ((whole_days * 24 + numbers[0]) * 60 + numbers[1]) * 60 + numbers[2];
}

// The name by which the batch file calls this program: the bare one if the PATH leads to it.
std::string ProgramName(const Environment& env) {
  const char* const path = env.getenv("PATH");
  std::error_code error;
  for (const std::string& folder : std::vector<std::string>(
           absl::StrSplit(path == nullptr ? "" : path, ':', absl::SkipEmpty()))) {
    const std::filesystem::path found = std::filesystem::path(folder) / "espalier";
    if (!std::filesystem::exists(found, error)) continue;
    if (std::filesystem::equivalent(found, env.program, error)) return "espalier";
    break;
  }
  return env.program;
}

std::string Directive(const std::string& option, const std::string& comment = "") {
  std::string line = absl::StrCat("#SBATCH --", option);
  if (!comment.empty()) {
    line = absl::StrCat(Pad(line, 36, Align::kLeft), " # ", comment);
  }
  return line + "\n";
}

}  // namespace

absl::Status CheckTrainWords(const std::vector<std::string>& words, bool batch) {
  if (words.empty() || words[0] != "train") {
    return UsageError(absl::StrCat(
        words.empty() ? "missing: a training command"
                      : absl::StrCat("\"", Printable(words[0]), "\" is no training command"),
        "; it follows --, as in: -- train --model=llama:tiny -d text.txt --steps=200"));
  }
  std::vector<FlagSpec> specs = TrainCommand().flags;
  for (FlagSpec& spec : CommonFlags()) specs.push_back(std::move(spec));
  const absl::StatusOr<ParsedFlags> flags = ParseFlags(specs, {words.begin() + 1, words.end()});
  if (!flags.ok()) return UsageError(absl::StrCat("train: ", flags.status().message()));
  if (!flags->positional().empty()) {
    return UsageError(
        absl::StrCat("train: unexpected argument \"", Printable(flags->positional()[0]), "\""));
  }
  if (flags->Has("coordinator")) {
    return UsageError("train --coordinator: it trains on the coordinator that is started");
  }
  for (const char* const flag : {"detach", "dry-run", "export-strategy", "json"}) {
    if (!batch || !flags->Has(flag)) continue;
    return UsageError(
        absl::StrCat("train --", flag, ": a batch job submits its training, and follows it"));
  }
  if (!flags->Has("dataset")) return UsageError("train: missing --dataset=FILE");
  for (const char* const flag : {"dataset", "validation"}) {
    // A batch job may have files that this host has not.
    const std::string given = batch || flags->Has("no-upload") ? "" : flags->Text(flag);
    std::error_code error;
    if (given.empty() || absl::StartsWith(given, "artifact:") || absl::StartsWith(given, "s3://") ||
        std::filesystem::exists(given, error)) {
      continue;
    }
    return UsageError(absl::StrCat("train --", flag, ": there is no file ", Printable(given)));
  }
  return absl::OkStatus();
}

absl::Status CheckOwner(const ParsedFlags& flags, const std::vector<FlagSpec>& specs,
                        const std::string& wanted, const std::string& command) {
  if (wanted == command) return absl::OkStatus();
  for (const FlagSpec& spec : specs) {
    if (!flags.Has(spec.name)) continue;
    return UsageError(absl::StrCat("--", spec.name, " applies to ", wanted, ", not to ", command));
  }
  return absl::OkStatus();
}

std::vector<FlagSpec> SlurmScriptFlags() {
  std::vector<FlagSpec> flags = {
      {"nodes", FlagType::kInt, "N", "nodes (1)", 'N', 1, 65536},
      {"gpus", FlagType::kInt, "N", "GPUs of each node, one worker per GPU (none)", 0, 0, 1024},
      {"ntasks-per-node", FlagType::kInt, "N", "workers of each node (one per GPU, at least one)",
       0, 1, 1024},
      {"cpus-per-task", FlagType::kInt, "N", "cores of each worker", 'c', 1, 65536},
      {"mem", FlagType::kText, "SIZE", "memory of each node, such as 16G"},
      {"time", FlagType::kText, "TIME", "time limit, such as 1:00:00 or 2-00", 't'},
      {"account", FlagType::kText, "NAME", "account that is charged", 'A'},
      {"partition", FlagType::kText, "NAME", "partition"},
      {"job-name", FlagType::kText, "NAME", "name of the batch job (espalier)", 'J'},
      {"output", FlagType::kText, "FILE", "file for its output, with sbatch's patterns (%x-%j.out)",
       'o'},
      {"signal", FlagType::kInt, "SECONDS",
       "so long before the time limit a checkpoint is written and the batch job requeued (120, at "
       "most a quarter of --time)",
       0, 10, 65535},
  };
  for (FlagSpec& flag : SbatchFlags()) flags.push_back(std::move(flag));
  return flags;
}

absl::StatusOr<SlurmScript> ReadSlurmScript(const Context& context,
                                            std::vector<std::string> words) {
  if (absl::Status s = CheckTrainWords(words, /*batch=*/true); !s.ok()) return s;
  const ParsedFlags& flags = context.flags();
  SlurmScript script;
  script.nodes = static_cast<int>(flags.Int("nodes", 1));
  script.gpus = static_cast<int>(flags.Int("gpus", 0));
  script.tasks = static_cast<int>(flags.Int("ntasks-per-node", std::max(1, script.gpus)));
  script.cpus_per_task = static_cast<int>(flags.Int("cpus-per-task", 0));
  script.signal_seconds = static_cast<int>(flags.Int("signal", script.signal_seconds));
  if (script.gpus > 0 && script.tasks > script.gpus) {
    return UsageError(absl::StrCat("--ntasks-per-node=", script.tasks, " with --gpus=", script.gpus,
                                   ": each worker needs a GPU of its own"));
  }
  const struct {
    const char* flag;
    std::string* to;
  } texts[] = {{"mem", &script.memory},      {"time", &script.time},
               {"account", &script.account}, {"partition", &script.partition},
               {"job-name", &script.name},   {"output", &script.output}};
  for (const auto& [flag, to] : texts) {
    *to = flags.Text(flag, *to);
    if (absl::Status s = CheckSbatchValue(flag, *to); !s.ok()) return s;
  }
  auto more = ReadSbatchOptions(flags);
  if (!more.ok()) return more.status();
  script.more = *std::move(more);
  // A signal at once would requeue the job for ever.
  if (const std::optional<int64_t> limit = SecondsOf(script.time); limit.has_value()) {
    if (flags.Has("signal") && script.signal_seconds >= *limit) {
      return UsageError(absl::StrCat("--signal=", script.signal_seconds,
                                     " is not below --time=", script.time, ", ", *limit,
                                     " seconds: the batch job would be "
                                     "requeued again and again before it has trained"));
    }
    if (!flags.Has("signal")) {
      script.signal_seconds =
          static_cast<int>(std::clamp<int64_t>(*limit / 4, 1, script.signal_seconds));
    }
  }
  script.program = ProgramName(context.env());
  script.train = std::move(words);
  return script;
}

std::string RenderSlurmScript(const SlurmScript& script) {
  const int tasks = script.tasks > 0 ? script.tasks : std::max(1, script.gpus);
  std::string out = "#!/bin/bash\n";
  absl::StrAppend(&out, Directive("job-name=" + script.name),
                  Directive(absl::StrCat("nodes=", script.nodes)),
                  Directive(absl::StrCat("ntasks-per-node=", tasks), "one worker per task"));
  if (script.gpus > 0) {
    absl::StrAppend(&out, Directive(absl::StrCat("gpus-per-node=", script.gpus),
                                    "older clusters: --gres=gpu:N"));
  }
  if (script.cpus_per_task > 0) {
    absl::StrAppend(&out, Directive(absl::StrCat("cpus-per-task=", script.cpus_per_task)));
  } else if (script.gpus > 0) {
    absl::StrAppend(&out,
                    "# SLURM gives each worker one core; more: espalier slurm script "
                    "--cpus-per-task=N\n");
  }
  const std::pair<const char*, const std::string&> texts[] = {{"mem", script.memory},
                                                              {"time", script.time},
                                                              {"account", script.account},
                                                              {"partition", script.partition},
                                                              {"output", script.output}};
  for (const auto& [option, value] : texts) {
    if (!value.empty()) absl::StrAppend(&out, Directive(absl::StrCat(option, "=", value)));
  }
  for (const auto& [option, value] : script.more) {
    absl::StrAppend(&out, Directive(value.empty() ? option : absl::StrCat(option, "=", value)));
  }
  absl::StrAppend(&out, Directive("open-mode=append", "requeued runs write on"),
                  Directive("requeue"),
                  Directive(absl::StrCat("signal=B:USR1@", script.signal_seconds),
                            "seconds before the time limit: checkpoint and requeue"));
  absl::StrAppend(&out, "\n# module load ",
                  script.gpus > 0 ? "cuda  # what GPU workers need here\n"
                                  : "...  # what your cluster needs\n");
  absl::StrAppend(&out,
                  "\n# Jobs, checkpoints, models and logs, from which a requeued run goes on.\n"
                  "export ESPALIER_HOME=\"${SCRATCH:-$SLURM_SUBMIT_DIR}/espalier-$SLURM_JOB_ID\"\n"
                  "\n# Starts the coordinator here, on the first node, and the workers by srun; "
                  "submits the training, shows its\n# progress, and ends with its exit code.\n");
  if (script.gpus > 0 && script.nodes > 1) {
    absl::StrAppend(&out,
                    "# --trusted-network: NCCL does not encrypt what GPUs of several nodes "
                    "exchange.\n");
  }
  const std::string cpus = script.cpus_per_task > 0 ? " --cpus-per-task=$SLURM_CPUS_PER_TASK" : "";
  const std::string program = ShellQuote(script.program);
  const char* const trusted = script.gpus > 0 && script.nodes > 1 ? " --trusted-network" : "";
  absl::StrAppend(&out, "exec ", program, " slurm run --workers=\"srun --label", cpus, " ", program,
                  " slurm worker", trusted, "\" -- \\\n  ", ShellQuote(script.train), "\n");
  return out;
}

}  // namespace espalier
