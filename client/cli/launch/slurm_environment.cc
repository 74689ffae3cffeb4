#include "client/cli/launch/slurm_environment.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace espalier {
namespace {

constexpr size_t kMostNodes = 1 << 16;

std::string Text(const GetEnv& getenv, const char* name) {
  const char* const value = getenv(name);
  return value == nullptr ? "" : value;
}

// A number of at least `least` in a variable; `fallback` if there is none.
int64_t Number(const GetEnv& getenv, const char* name, int64_t least, int64_t fallback) {
  int64_t value = 0;
  return absl::SimpleAtoi(Text(getenv, name), &value) && value >= least ? value : fallback;
}

absl::Status BadList(absl::string_view list) {
  return absl::InvalidArgumentError(
      absl::StrCat("\"", list, "\" is no list of nodes as SLURM writes it, such as n1,gpu[01-04]"));
}

// Splits at commas outside of brackets.
std::vector<std::string> SplitList(absl::string_view list) {
  std::vector<std::string> parts(1);
  int depth = 0;
  for (const char c : list) {
    if (c == '[') ++depth;
    if (c == ']') --depth;
    if (c == ',' && depth == 0) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

// Adds what "01-03" or "7" stands for. Leading zeros stay.
bool ExpandRange(absl::string_view range, std::vector<std::string>* out) {
  const std::vector<absl::string_view> ends = absl::StrSplit(range, '-');
  const absl::string_view first = ends.front(), last = ends.back();
  int64_t from = 0, to = 0;
  const bool digits = std::all_of(range.begin(), range.end(),
                                  [](char c) { return absl::ascii_isdigit(c) || c == '-'; });
  if (!digits || ends.size() > 2 || !absl::SimpleAtoi(first, &from) ||
      !absl::SimpleAtoi(last, &to) || to < from || to - from >= static_cast<int64_t>(kMostNodes)) {
    return false;
  }
  for (int64_t n = from; n <= to; ++n) {
    out->push_back(absl::StrFormat("%0*d", static_cast<int>(first.size()), n));
  }
  return true;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ExpandNodeList(absl::string_view list) {
  std::vector<std::string> nodes;
  for (const std::string& part : SplitList(list)) {
    std::vector<std::string> names = {""};
    for (absl::string_view rest = part; !rest.empty();) {
      const size_t open = rest.find('[');
      for (std::string& name : names) absl::StrAppend(&name, rest.substr(0, open));
      if (open == absl::string_view::npos) break;
      const size_t close = rest.find(']', open);
      if (close == absl::string_view::npos) return BadList(list);
      std::vector<std::string> numbers;
      for (absl::string_view range : absl::StrSplit(rest.substr(open + 1, close - open - 1), ',')) {
        if (!ExpandRange(range, &numbers)) return BadList(list);
      }
      if (names.size() * numbers.size() > kMostNodes) return BadList(list);
      std::vector<std::string> longer;
      for (const std::string& name : names) {
        for (const std::string& number : numbers) longer.push_back(name + number);
      }
      names = std::move(longer);
      rest.remove_prefix(close + 1);
    }
    for (std::string& name : names) {
      if (name.empty() || absl::StrContains(name, ']')) return BadList(list);
      nodes.push_back(std::move(name));
    }
    if (nodes.size() > kMostNodes) return BadList(list);
  }
  return nodes;
}

absl::StatusOr<std::vector<int>> ExpandTasks(absl::string_view tasks) {
  std::vector<int> by_node;
  for (absl::string_view part : absl::StrSplit(tasks, ',')) {
    const size_t open = part.find("(x");
    int count = 0, times = 1;
    bool valid = absl::SimpleAtoi(part.substr(0, open), &count) && count > 0;
    if (open != absl::string_view::npos) {
      absl::string_view repeated = part.substr(open + 2);
      valid = valid && absl::ConsumeSuffix(&repeated, ")") && absl::SimpleAtoi(repeated, &times) &&
              times > 0;
    }
    if (!valid || by_node.size() + times > kMostNodes) {
      return absl::InvalidArgumentError(absl::StrCat(
          "\"", tasks, "\" is no list of tasks by node as SLURM writes it, such as 2(x3),1"));
    }
    by_node.insert(by_node.end(), times, count);
  }
  return by_node;
}

namespace {

int TasksOnThisNode(const GetEnv& getenv) {
  std::string tasks = Text(getenv, "SLURM_STEP_TASKS_PER_NODE");
  if (tasks.empty()) tasks = Text(getenv, "SLURM_TASKS_PER_NODE");
  const absl::StatusOr<std::vector<int>> by_node = ExpandTasks(tasks);
  const int64_t node = Number(getenv, "SLURM_NODEID", 0, 0);
  if (!by_node.ok() || node >= static_cast<int64_t>(by_node->size())) return 1;
  return (*by_node)[node];
}

absl::StatusOr<std::string> DeviceOf(const GetEnv& getenv, int64_t local_id, int tasks) {
  const std::string visible = Text(getenv, "CUDA_VISIBLE_DEVICES");
  int64_t gpus = Number(getenv, "SLURM_GPUS_ON_NODE", 1, 0);
  if (!visible.empty()) {
    // "NoDevFiles" is SLURM's name for none.
    const std::vector<std::string> devices = absl::StrSplit(visible, ',', absl::SkipWhitespace());
    gpus = visible == "NoDevFiles" || visible == "-1" ? 0 : static_cast<int64_t>(devices.size());
    // SLURM has bound the task to its own.
    if (gpus == 1 && (tasks == 1 || Number(getenv, "SLURM_GPUS_ON_NODE", 1, tasks) > 1)) {
      return "cuda:0";
    }
  }
  if (gpus == 0) return "cpu";
  if (local_id < gpus) return absl::StrCat("cuda:", local_id);
  return absl::FailedPreconditionError(absl::StrCat(
      "node ", Text(getenv, "SLURMD_NODENAME"), " has ", gpus, " GPUs for this job and ", tasks,
      " tasks, and each task needs one: write --ntasks-per-node=", gpus,
      " or more --gpus-per-node into the batch file"));
}

}  // namespace

absl::StatusOr<SlurmTask> ReadSlurmTask(const GetEnv& getenv, const MachineFacts& machine) {
  if (Text(getenv, "SLURM_PROCID").empty() || Text(getenv, "SLURM_LOCALID").empty()) {
    return absl::FailedPreconditionError(
        "this is no task of SLURM (SLURM_PROCID and SLURM_LOCALID are not set); the batch file of "
        "`espalier slurm script` starts it with srun");
  }
  const int64_t local_id = Number(getenv, "SLURM_LOCALID", 0, 0);
  const int tasks = TasksOnThisNode(getenv);
  SlurmTask task;
  task.name = Text(getenv, "SLURMD_NODENAME");
  if (local_id > 0) absl::StrAppend(&task.name, "-", local_id);
  absl::StatusOr<std::string> device = DeviceOf(getenv, local_id, tasks);
  if (!device.ok()) return device.status();
  task.device = *std::move(device);

  // Without the plug-ins that bind tasks to CPUs, the mask is the whole machine's.
  const int64_t on_node = Number(getenv, "SLURM_CPUS_ON_NODE", 1, machine.cpus);
  const int64_t share = std::max<int64_t>(1, on_node / tasks);
  const int64_t cpus = Number(getenv, "SLURM_CPUS_PER_TASK", 1, share);
  task.threads = static_cast<int>(std::clamp<int64_t>(cpus, 1, machine.cpus));

  constexpr int64_t kMegabyte = 1 << 20;
  task.memory = machine.memory / tasks;
  // 0 is all of the node's.
  if (const int64_t node = Number(getenv, "SLURM_MEM_PER_NODE", 1, 0); node > 0) {
    task.memory = std::min(task.memory, node * kMegabyte / tasks);
  } else if (const int64_t cpu = Number(getenv, "SLURM_MEM_PER_CPU", 1, 0); cpu > 0) {
    task.memory = std::min(task.memory, cpu * kMegabyte * cpus);
  }
  task.launcher = Text(getenv, "SLURM_LAUNCH_NODE_IPADDR");
  task.cache = Text(getenv, "SLURM_TMPDIR");
  return task;
}

absl::StatusOr<SlurmJob> ReadSlurmJob(const GetEnv& getenv) {
  SlurmJob job;
  job.id = Text(getenv, "SLURM_JOB_ID");
  if (job.id.empty()) {
    return absl::FailedPreconditionError(
        "this is no job of SLURM (SLURM_JOB_ID is not set); make a batch file with `espalier slurm "
        "script` and submit it with sbatch, or let `espalier launch slurm` do both");
  }
  absl::StatusOr<std::vector<std::string>> nodes =
      ExpandNodeList(Text(getenv, "SLURM_JOB_NODELIST"));
  if (!nodes.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat("SLURM_JOB_NODELIST: ", nodes.status().message()));
  }
  job.nodes = *std::move(nodes);
  job.submit_folder = Text(getenv, "SLURM_SUBMIT_DIR");
  job.restarts = static_cast<int>(Number(getenv, "SLURM_RESTART_COUNT", 0, 0));
  job.tasks = static_cast<int>(Number(getenv, "SLURM_NTASKS", 1, 0));
  if (job.tasks == 0) {
    const absl::StatusOr<std::vector<int>> by_node =
        ExpandTasks(Text(getenv, "SLURM_TASKS_PER_NODE"));
    if (by_node.ok()) {
      for (const int tasks : *by_node) job.tasks += tasks;
    }
  }
  return job;
}

}  // namespace espalier
