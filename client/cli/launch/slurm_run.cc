// The first node's part of a batch job: starts everything, follows the training, ends everything.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/cli/daemon.h"
#include "client/cli/interrupt.h"
#include "client/cli/launch/child_process.h"
#include "client/cli/launch/launch_context.h"
#include "client/cli/launch/signal_queue.h"
#include "client/cli/launch/slurm.h"
#include "client/cli/launch/slurm_environment.h"
#include "client/cli/launch/slurm_script.h"
#include "client/cli/launch/slurm_training.h"
#include "client/terminal/text.h"
#include "proto/states.h"

namespace espalier {
namespace {

namespace fs = std::filesystem;

constexpr int kTick = 50;                    // milliseconds
constexpr double kDaemonSeconds = 90;        // until the coordinator answers
constexpr double kCheckpointSeconds = 3600;  // SLURM ends the job before that
constexpr double kWorkersLeave = 15;
constexpr double kDaemonLeaves = 30;
// A requeued job waits so long for as many workers as it had: srun starts them one node after the
// other.
constexpr int kWorkersReturn = 180;
constexpr double kWorkersTokenSeconds = 3600;

class SlurmRun {
 public:
  SlurmRun(Context* context, SlurmJob job, std::string home)
      : context_(*context), job_(std::move(job)), home_(std::move(home)) {}
  ~SlurmRun() { StopAll(); }

  absl::Status Run(const std::vector<std::string>& train) {
    absl::Status status = StartCoordinator();
    if (status.ok()) status = StartWorkers();
    if (status.ok()) status = AwaitWorkers();
    if (status.ok()) status = FindOrSubmit(train);
    if (status.ok()) status = Follow();
    return status;
  }

 private:
  using Seconds = std::chrono::duration<double>;

  // Waits until `done`, and meanwhile takes signals and looks after the other processes.
  absl::Status Until(const std::function<bool()>& done, double seconds, const std::string& what) {
    const auto begin = std::chrono::steady_clock::now();
    while (!done()) {
      if (absl::Status s = OnSignal(signals_.Wait(kTick)); !s.ok()) return s;
      if (absl::Status s = CheckProcesses(); !s.ok()) return s;
      AdvanceRequeue();
      if (Seconds(std::chrono::steady_clock::now() - begin).count() > seconds) {
        return absl::DeadlineExceededError(
            absl::StrCat(what, " has taken longer than ", seconds, " s"));
      }
    }
    return absl::OkStatus();
  }

  absl::Status OnSignal(int signal) {
    if (signal == 0) return absl::OkStatus();
    if (signal == SIGUSR1) {
      if (requeue_ != Requeue::kNone) return absl::OkStatus();
      requeue_ = Requeue::kWanted;
      return absl::OkStatus();
    }
    return InterruptedError(requeue_ == Requeue::kDone || requeue_ == Requeue::kRequeues
                                ? "SLURM has requeued this job; it goes on from its checkpoint"
                                : "SLURM ends this job");
  }

  absl::Status CheckProcesses() {
    if (daemon_ != nullptr && daemon_->Ended()) {
      return absl::InternalError(
          absl::StrCat("the coordinator has ended (exit code ", daemon_->exit_code(),
                       "). The end of ", LogFile(home_), ":\n  ", LastLines(LogFile(home_), 8)));
    }
    if (workers_ != nullptr && workers_->Ended()) {
      return absl::InternalError(absl::StrCat("all workers have ended (exit code ",
                                              workers_->exit_code(), " of srun). The end of ",
                                              WorkersLog(), ":\n  ", LastLines(WorkersLog(), 8)));
    }
    return absl::OkStatus();
  }

  std::string WorkersLog() const { return home_ + "/workers.log"; }

  absl::Status StartCoordinator() {
    auto program = FindProgram(context_.env().program, "server", "espalierd");
    if (!program.ok()) return program.status();
    // What a run of this job before a requeue left there is not the address of this coordinator.
    std::error_code ignored;
    fs::remove(ReadyFile(home_), ignored);
    ChildOptions options;
    options.command = {*program, "--data-dir=" + home_ + "/data",
                       // Other users may be on this node, too.
                       "--tls=auto", "--listen=0.0.0.0:0",
                       "--http-listen=", "--ready-file=" + ReadyFile(home_)};
    if (job_.restarts > 0) {
      options.command.push_back(absl::StrCat("--worker-return-timeout=", kWorkersReturn));
    }
    options.output_file = LogFile(home_);
    auto daemon = ChildProcess::Start(options);
    if (!daemon.ok()) return daemon.status();
    daemon_ = *std::move(daemon);
    absl::Status ready = Until([&] { return fs::exists(ReadyFile(home_), ignored); },
                               kDaemonSeconds, "starting the coordinator");
    if (!ready.ok()) return ready;
    address_ = ReadAddresses(home_).grpc;
    // Its folder is a home of the command line, with address, CA and key.
    here_ = VariablesOfHome(home_);
    auto flags = ParseFlags(CommonFlags(), {});
    if (!flags.ok()) return flags.status();
    own_ = std::make_unique<Context>(WithVariables(context_.env(), here_), *std::move(flags));
    Say(context_, "coordinator",
        absl::StrCat("coordinator on ", job_.nodes[0], ", ", address_, "; its folder: ", home_));
    return absl::OkStatus();
  }

  absl::Status StartWorkers() {
    auto client = own_->client();
    if (!client.ok()) return client.status();
    v1::CreateTokenRequest request;
    request.add_roles("worker");
    request.set_ttl_seconds(kWorkersTokenSeconds);
    request.set_uses(std::max(1, job_.tasks));
    auto token = (*client)->CreateToken(request);
    if (!token.ok()) return token.status();
    ChildOptions options;
    // `exec`: signals reach srun itself.
    options.command = {"/bin/sh", "-c", "exec " + context_.flags().Text("workers")};
    // srun hands the environment on, which other users do not see.
    options.environment = {{"ESPALIER_COORDINATOR", address_},
                           {"ESPALIER_JOIN_TOKEN", token->text()}};
    options.output_file = WorkersLog();
    auto workers = ChildProcess::Start(options);
    if (!workers.ok()) return workers.status();
    workers_ = *std::move(workers);
    return absl::OkStatus();
  }

  // Names of the workers that have joined and live.
  std::set<std::string> Joined() {
    std::set<std::string> names;
    auto client = own_->client();
    if (!client.ok()) return names;
    auto status = (*client)->Status();
    if (!status.ok()) return names;
    for (const v1::WorkerInfo& worker : status->workers()) {
      if (!IsGone(worker.state())) names.insert(worker.name());
    }
    return names;
  }

  absl::Status AwaitWorkers() {
    const size_t wanted = static_cast<size_t>(std::max(1, job_.tasks));
    const double seconds = context_.flags().Number("timeout", 300);
    std::set<std::string> joined;
    size_t said = 0;
    absl::Status status = Until(
        [&] {
          joined = Joined();
          if (joined.size() != said) {
            said = joined.size();
            Say(context_, "workers", absl::StrCat(said, " of ", wanted, " workers have joined"));
          }
          return joined.size() >= wanted || requeue_ == Requeue::kDone;
        },
        seconds, "joining of the workers");
    if (!absl::IsDeadlineExceeded(status) || joined.empty()) {
      return absl::IsDeadlineExceeded(status)
                 ? absl::DeadlineExceededError(absl::StrCat("no worker has joined within ", seconds,
                                                            " s. The end of ", WorkersLog(),
                                                            ":\n  ", LastLines(WorkersLog(), 8)))
                 : status;
    }
    std::vector<std::string> without;
    for (const std::string& node : job_.nodes) {
      if (joined.count(node) == 0) without.push_back(node);
    }
    Say(context_, "warning",
        absl::StrCat("warning: only ", joined.size(), " of ", wanted,
                     " workers have joined within ", seconds, " s",
                     without.empty() ? "" : "; nodes without any: ", absl::StrJoin(without, ", "),
                     "; the training begins without the others. See ", WorkersLog()));
    return absl::OkStatus();
  }

  absl::Status FindOrSubmit(const std::vector<std::string>& train) {
    auto client = own_->client();
    if (!client.ok()) return client.status();
    auto jobs = (*client)->ListJobs();
    if (!jobs.ok()) return jobs.status();
    auto known = ReadBatchTraining(home_);
    if (!known.ok()) return known.status();
    std::vector<KnownTraining> trainings;
    for (const v1::Job& job : *jobs) trainings.push_back({job.id(), IsOver(job.state())});
    training_ = TrainingToResume(*known, job_.id, job_.restarts, train, trainings);
    for (const KnownTraining& other : trainings) {
      if (other.is_over || other.id == training_) continue;
      Say(context_, "warning",
          absl::StrCat("warning: ", home_,
                       " has a training that is not this batch job's and has "
                       "not ended, job ",
                       other.id, "; it goes on, too, while this one runs"));
    }
    BatchTraining own{job_.id, train, trainings.empty() ? "" : trainings.back().id, training_};
    if (absl::Status s = WriteBatchTraining(home_, own); !s.ok()) return s;
    if (!training_.empty()) {
      const v1::Job& job = *std::find_if(jobs->begin(), jobs->end(),
                                         [&](const v1::Job& one) { return one.id() == training_; });
      Say(context_, "resumed",
          absl::StrCat("run ", job_.restarts + 1, " of this batch job: job ", training_,
                       IsOver(job.state()) ? absl::StrCat(" has ended as ", StateName(job.state()))
                                           : absl::StrCat(" goes on from its checkpoint of step ",
                                                          job.checkpoint_step())));
      return absl::OkStatus();
    }
    if (job_.restarts > 0) {
      Say(context_, "warning",
          absl::StrCat("warning: run ", job_.restarts + 1,
                       " of this batch job finds no "
                       "training of an earlier run in ",
                       home_,
                       " and begins anew; ESPALIER_HOME must be a folder that all nodes "
                       "share"));
    }
    ChildOptions options;
    options.command = {context_.env().program};
    options.command.insert(options.command.end(), train.begin(), train.end());
    options.command.insert(options.command.end(), {"--detach", "--json"});
    options.environment = here_;
    options.keep_output = true;
    auto submission = ChildProcess::Start(options);
    if (!submission.ok()) return submission.status();
    if (absl::Status s = Until([&] { return (*submission)->Ended(); }, 86400, "the submission");
        !s.ok()) {
      return s;
    }
    const std::string errors = (*submission)->errors();
    if ((*submission)->exit_code() != 0) {
      return ProgramFailed(
          absl::StrCat("the training was not submitted:\n  ", Printable(errors, true)),
          (*submission)->exit_code());
    }
    // One document per line; the last one is the submission.
    const std::vector<std::string> lines =
        absl::StrSplit((*submission)->output(), '\n', absl::SkipWhitespace());
    const auto json = nlohmann::json::parse(lines.empty() ? "" : lines.back(), nullptr, false);
    if (!json.is_object() || !json.contains("job_id") || !json["job_id"].is_string()) {
      return absl::InternalError("`espalier train --json` named no job");
    }
    own.id = training_ = json["job_id"].get<std::string>();
    if (absl::Status s = WriteBatchTraining(home_, own); !s.ok()) return s;
    Say(context_, "submitted", absl::StrCat("submitted job ", training_));
    return absl::OkStatus();
  }

  absl::Status Follow() {
    ChildOptions options;
    options.command = {context_.env().program, "jobs", "watch", training_};
    if (context_.json()) options.command.push_back("--json");
    options.environment = here_;
    auto watch = ChildProcess::Start(options);
    if (!watch.ok()) return watch.status();
    watch_ = *std::move(watch);
    absl::Status status = Until([&] { return watch_->Ended(); }, 1e9, "the training");
    if (!status.ok()) return status;
    if (watch_->exit_code() == 0) return absl::OkStatus();
    if (watch_->exit_code() == kExitFailed) {
      return absl::InternalError(absl::StrCat("job ", training_, " has not succeeded"));
    }
    return ProgramFailed(absl::StrCat("`espalier jobs watch ", training_, "` failed (exit code ",
                                      watch_->exit_code(), ")"),
                         watch_->exit_code());
  }

  // After USR1, without blocking: a checkpoint, then `scontrol requeue`.
  void AdvanceRequeue() {
    switch (requeue_) {
      case Requeue::kNone:
      case Requeue::kDone:
        return;
      case Requeue::kWanted:
        if (training_.empty()) {
          StartStep({"scontrol", "requeue", job_.id}, Requeue::kRequeues);
          return;
        }
        Say(context_, "checkpoint", "the time limit is near: writing a checkpoint");
        StartStep({context_.env().program, "jobs", "checkpoint", training_,
                   absl::StrCat("--timeout=", kCheckpointSeconds)},
                  Requeue::kWrites);
        return;
      case Requeue::kWrites:
        if (!step_->Ended()) return;
        Say(context_, step_->exit_code() == 0 ? "checkpoint" : "warning",
            step_->exit_code() == 0
                ? std::string(absl::StripAsciiWhitespace(Printable(step_->output(), true)))
                : absl::StrCat("warning: no new checkpoint, an older one is used: ",
                               Printable(step_->errors(), true)));
        StartStep({"scontrol", "requeue", job_.id}, Requeue::kRequeues);
        return;
      case Requeue::kRequeues:
        if (!step_->Ended()) return;
        requeue_ = Requeue::kDone;
        if (step_->exit_code() == 0) {
          Say(context_, "requeued", absl::StrCat("job ", job_.id, " is requeued"));
          return;
        }
        Say(context_, "warning",
            absl::StrCat("warning: `scontrol requeue ", job_.id,
                         "` failed: ", Printable(step_->errors(), true),
                         "; the training goes on until the time limit, and can be taken up again "
                         "with this folder: ESPALIER_HOME=",
                         home_));
        return;
    }
  }

  enum class Requeue { kNone, kWanted, kWrites, kRequeues, kDone };

  void StartStep(const std::vector<std::string>& command, Requeue next) {
    ChildOptions options;
    options.command = command;
    options.environment = here_;
    options.keep_output = true;
    auto step = ChildProcess::Start(options);
    if (!step.ok()) {
      Say(context_, "warning", absl::StrCat("warning: ", step.status().message()));
      requeue_ = Requeue::kDone;
      return;
    }
    step_ = *std::move(step);
    requeue_ = next;
  }

  // Workers before the coordinator, so that they can leave it.
  void StopAll() {
    if (step_ != nullptr) step_->Stop(1);
    if (watch_ != nullptr) watch_->Stop(1);
    if (workers_ != nullptr) workers_->Stop(kWorkersLeave);
    if (daemon_ != nullptr) daemon_->Stop(kDaemonLeaves);
    std::error_code ignored;
    fs::remove(ReadyFile(home_), ignored);
  }

  SignalQueue signals_;  // before the client's threads
  Context& context_;
  const SlurmJob job_;
  const std::string home_;
  std::string address_;                      // of the coordinator
  std::map<std::string, std::string> here_;  // environment of commands on this node
  std::unique_ptr<Context> own_;             // with that environment
  std::unique_ptr<ChildProcess> daemon_;
  std::unique_ptr<ChildProcess> workers_;  // srun
  std::unique_ptr<ChildProcess> watch_;
  std::unique_ptr<ChildProcess> step_;  // of the requeue
  Requeue requeue_ = Requeue::kNone;
  std::string training_;  // id of the job
};

}  // namespace

absl::Status RunSlurmJob(Context& context, const std::vector<std::string>& train) {
  if (absl::Status s = CheckTrainWords(train, /*batch=*/true); !s.ok()) return s;
  if (context.flags().Text("workers").empty()) {
    return UsageError(
        "missing: --workers=COMMAND, which starts the workers, as in --workers=\"srun espalier "
        "slurm worker\"");
  }
  auto job = ReadSlurmJob(context.env().getenv);
  if (!job.ok()) return job.status();
  const char* const home = context.env().getenv("ESPALIER_HOME");
  fs::path folder = context.flags().Text("home", home == nullptr ? "" : home);
  if (folder.empty()) folder = fs::path(job->submit_folder) / ("espalier-" + job->id);
  std::error_code error;
  folder = fs::absolute(folder, error);
  fs::create_directories(folder, error);
  if (!error) fs::permissions(folder, fs::perms::owner_all, error);
  if (error) {
    return absl::PermissionDeniedError(
        absl::StrCat("cannot make ", folder.string(), ": ", error.message(),
                     "; name another folder with ESPALIER_HOME in the batch file"));
  }
  return SlurmRun(&context, *std::move(job), folder.string()).Run(train);
}

}  // namespace espalier
