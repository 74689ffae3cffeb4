// `espalier slurm script`, and what the batch file calls.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/nearest.h"
#include "client/cli/command.h"
#include "client/cli/launch/slurm.h"
#include "client/cli/launch/slurm_script.h"
#include "client/terminal/text.h"

namespace espalier {
namespace {

absl::Status PrintScript(Context& context, std::vector<std::string> words) {
  auto script = ReadSlurmScript(context, std::move(words));
  if (!script.ok()) return script.status();
  const std::string text = RenderSlurmScript(*script);
  if (context.json()) {
    nlohmann::ordered_json json;
    json["script"] = text;
    context.Document(json);
  } else {
    context.out() << text << std::flush;
  }
  return absl::OkStatus();
}

std::vector<FlagSpec> RunFlags() {
  return {{"workers", FlagType::kText, "COMMAND",
           "of run: the command line that starts the workers with srun"},
          {"timeout", FlagType::kNumber, "SECONDS",
           "of run: how long the workers may take to join (300)", 0, 1}};
}

std::vector<FlagSpec> WorkerFlags() {
  return {{"trusted-network", FlagType::kSwitch, "",
           "of worker: tensors pass in clear between nodes, as NCCL needs it"}};
}

absl::Status RunSlurm(Context& context) {
  const std::vector<std::string>& words = context.flags().positional();
  const std::string verb = words.empty() ? "" : words[0];
  const std::vector<std::string> verbs = {"script", "run", "worker"};
  std::vector<std::string> rest;
  if (!words.empty()) rest.assign(words.begin() + 1, words.end());
  const std::pair<const char*, std::vector<FlagSpec>> owners[] = {
      {"slurm script", SlurmScriptFlags()},
      {"slurm run", RunFlags()},
      {"slurm worker", WorkerFlags()}};
  for (const auto& [owner, flags] : owners) {
    if (std::find(verbs.begin(), verbs.end(), verb) == verbs.end()) break;
    absl::Status s = CheckOwner(context.flags(), flags, owner, "slurm " + verb);
    if (!s.ok()) return s;
  }
  if (verb == "script") return PrintScript(context, std::move(rest));
  if (verb == "run") return RunSlurmJob(context, rest);
  if (verb == "worker") return RunSlurmWorker(context);
  const std::string near = Nearest(verb, verbs);
  return UsageError(
      absl::StrCat(verb.empty() ? "missing: a verb" : absl::StrCat("slurm ", Printable(verb)),
                   "; accepted are script, run, worker",
                   near.empty() ? "" : absl::StrCat("; did you mean ", near, "?")));
}

}  // namespace

Command SlurmCommand() {
  Command c;
  c.name = "slurm";
  c.summary = "print a batch file for SLURM, and do its part inside of the job";
  c.usage = "slurm script [--nodes=N] [--gpus=N] [flags] -- train ... | slurm run | slurm worker";
  c.description =
      "script prints a file for sbatch: it starts a coordinator on the first node and a worker per "
      "task,\ntrains, and ends with the training's exit code. Before the time limit it writes a "
      "checkpoint and is\nrequeued, and goes on from there. run and worker are what the file "
      "calls: "
      "they find nodes, cores,\nmemory and GPUs in SLURM's environment.";
  c.flags = SlurmScriptFlags();
  for (const std::vector<FlagSpec>& flags : {RunFlags(), WorkerFlags()}) {
    c.flags.insert(c.flags.end(), flags.begin(), flags.end());
  }
  c.examples = {
      {"two nodes with two GPUs each",
       "espalier slurm script --nodes=2 --gpus=2 --cpus-per-task=4 --mem=16G --time=1:00:00 -- "
       "train --model=llama:llm -d book.txt --steps=4000 > job.sh"},
      {"submit it", "sbatch job.sh"}};
  c.run = RunSlurm;
  return c;
}

}  // namespace espalier
