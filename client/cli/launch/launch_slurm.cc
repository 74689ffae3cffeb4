// `espalier launch slurm`: submits the batch file and follows it.
#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/cli/interrupt.h"
#include "client/cli/launch/child_process.h"
#include "client/cli/launch/launch.h"
#include "client/cli/launch/signal_queue.h"
#include "client/cli/launch/slurm_script.h"
#include "client/terminal/text.h"

namespace espalier {
namespace {

constexpr int kPollMilliseconds = 500;
// A controller that is restarted answers again within this time.
constexpr int kMostFailures = 240;

struct ToolAnswer {
  int code = 0;
  std::string out, err;
};

absl::StatusOr<ToolAnswer> RunTool(const std::vector<std::string>& command,
                                   const std::string& input = "") {
  ChildOptions options;
  options.command = command;
  options.input = input;
  options.keep_output = true;
  auto child = ChildProcess::Run(options);
  if (absl::IsNotFound(child.status())) {
    return absl::NotFoundError(
        absl::StrCat(command[0], " is not there; run this on a login node of the cluster"));
  }
  if (!child.ok()) return child.status();
  ToolAnswer answer{(*child)->exit_code(), (*child)->output(), (*child)->errors()};
  absl::StripAsciiWhitespace(&answer.out);
  absl::StripAsciiWhitespace(&answer.err);
  return answer;
}

// Fields of `scontrol show job`, "JobState=RUNNING Reason=None ...".
std::string Field(const std::string& text, const std::string& name) {
  std::string value;
  bool found = false;
  for (const absl::string_view word : absl::StrSplit(text, absl::ByAnyChar(" \n"))) {
    if (found) {
      if (absl::StrContains(word, '=')) break;
      absl::StrAppend(&value, " ", word);  // a path with a blank
    } else if (absl::StartsWith(word, name + "=")) {
      value = std::string(word.substr(name.size() + 1));
      found = true;
    }
  }
  absl::StripTrailingAsciiWhitespace(&value);
  return value;
}

// As sbatch names it: of this cluster, or of another one (--clusters, SBATCH_CLUSTERS).
struct SubmittedJob {
  std::string id;
  std::string cluster;  // empty: this one

  // A command for it, as people type it.
  std::string Call(const std::string& tool, const std::string& before_id = "") const {
    return absl::StrCat(tool, cluster.empty() ? "" : " --clusters=" + cluster, " ", before_id, id);
  }
};

// The exit code of a job that has not COMPLETED, of scontrol's "CODE:SIGNAL"; not 0.
int ExitCodeOf(const std::string& field) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(field, absl::MaxSplits(':', 1));
  int code = 0, signal = 0;
  if (absl::SimpleAtoi(parts.first, &code) && code > 0) return code;
  if (absl::SimpleAtoi(parts.second, &signal) && signal > 0) return 128 + signal;
  return kExitFailed;
}

bool IsLast(const std::string& state) {
  static constexpr const char* kLast[] = {"COMPLETED", "FAILED",    "CANCELLED",
                                          "TIMEOUT",   "NODE_FAIL", "OUT_OF_MEMORY",
                                          "DEADLINE",  "BOOT_FAIL", "PREEMPTED"};
  return std::any_of(std::begin(kLast), std::end(kLast),
                     [&](const char* last) { return state == last; });
}

// Shows what the batch job writes, from its begin on.
class Tail {
 public:
  Tail(Context* context) : context_(*context) {}

  void Show(const std::string& path) {
    if (context_.json() || path.empty()) return;
    std::ifstream in(path, std::ios::binary);
    if (!in.seekg(static_cast<std::streamoff>(shown_))) return;
    char piece[1 << 14];
    while (in.read(piece, sizeof(piece)) || in.gcount() > 0) {
      context_.out().write(piece, in.gcount());
      shown_ += static_cast<size_t>(in.gcount());
    }
    context_.out().flush();
  }

 private:
  Context& context_;
  size_t shown_ = 0;
};

absl::Status FollowBatchJob(Context& context, const SubmittedJob& job) {
  SignalQueue signals;
  Tail tail(&context);
  const std::string& id = job.id;
  const absl::Status left = InterruptedError(
      absl::StrCat("job ", id, " goes on; stop it: ", Printable(job.Call("scancel"))));
  std::vector<std::string> show = {"scontrol", "--oneliner", "show", "job", id};
  if (!job.cluster.empty()) show.insert(show.begin() + 1, "--clusters=" + job.cluster);
  std::string shown, path;
  for (int failures = 0;;) {
    auto answer = RunTool(show);
    if (!answer.ok()) return answer.status();
    const std::string state = Field(answer->out, "JobState");
    if (answer->code != 0 || state.empty()) {
      if (++failures < kMostFailures) {
        if (signals.Wait(kPollMilliseconds) != 0) return left;
        continue;
      }
      return absl::UnavailableError(absl::StrCat(
          "scontrol no longer tells of job ", id, ": ", Printable(answer->err), "; its output is ",
          path.empty() ? "in the folder of its submission" : path));
    }
    failures = 0;
    if (const std::string output = Field(answer->out, "StdOut"); !output.empty()) path = output;
    if (state != shown) {
      shown = state;
      if (context.json()) {
        nlohmann::ordered_json line;
        line["slurm_job"] = id;
        line["state"] = state;
        line["reason"] = Field(answer->out, "Reason");
        line["nodes"] = Field(answer->out, "NodeList");
        line["output"] = path;
        if (IsLast(state)) line["exit_code"] = Field(answer->out, "ExitCode");
        context.Line(line);
      } else {
        const std::string nodes = Field(answer->out, "NodeList");
        context.out() << "SLURM job " << id << ": " << absl::AsciiStrToLower(Printable(state))
                      << (nodes.empty() || nodes == "(null)" ? "" : " on " + Printable(nodes))
                      << std::endl;
      }
    }
    tail.Show(path);
    if (IsLast(state)) {
      if (state == "COMPLETED") return absl::OkStatus();
      const std::string code = Field(answer->out, "ExitCode");
      return ProgramFailed(
          absl::StrCat("SLURM job ", id, " has ended as ", Printable(state), ", exit code ",
                       Printable(code), "; its output: ", Printable(path)),
          ExitCodeOf(code));
    }
    if (signals.Wait(kPollMilliseconds) != 0) return left;
  }
}

}  // namespace

absl::Status LaunchSlurm(Context& context, std::vector<std::string> words) {
  auto script = ReadSlurmScript(context, std::move(words));
  if (!script.ok()) return script.status();
  auto answer = RunTool({"sbatch", "--parsable"}, RenderSlurmScript(*script));
  if (!answer.ok()) return answer.status();
  if (answer->code != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("sbatch has refused the batch file (`espalier slurm script` prints it): ",
                     Printable(answer->err, true)));
  }
  // "ID" or "ID;CLUSTER".
  SubmittedJob job;
  job.id = answer->out.substr(0, answer->out.find(';'));
  job.cluster = answer->out.substr(std::min(answer->out.size(), job.id.size() + 1));
  const std::string& id = job.id;
  int64_t number = 0;
  if (!absl::SimpleAtoi(id, &number)) {
    return absl::InternalError(
        absl::StrCat("sbatch --parsable answered \"", Printable(answer->out), "\", no job id"));
  }
  if (!context.json()) {
    context.out() << "submitted SLURM job " << context.style().Bold(id)
                  << (context.flags().Has("detach") ? "" : "; Ctrl-C leaves it running")
                  << std::endl;
  }
  if (!context.flags().Has("detach")) return FollowBatchJob(context, job);
  if (context.json()) {
    nlohmann::ordered_json json;
    json["slurm_job"] = id;
    context.Document(json);
  } else {
    context.out() << "see it:  " << Printable(job.Call("squeue", "-j "))
                  << "\nstop it: " << Printable(job.Call("scancel")) << std::endl;
  }
  return absl::OkStatus();
}

}  // namespace espalier
