// `espalier launch ssh`: a coordinator and workers on hosts that ssh reaches.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "base/net/own_address.h"
#include "base/random_id.h"
#include "client/cli/daemon.h"
#include "client/cli/interrupt.h"
#include "client/cli/launch/bundle.h"
#include "client/cli/launch/host_file.h"
#include "client/cli/launch/host_probe.h"
#include "client/cli/launch/launch.h"
#include "client/cli/launch/launch_context.h"
#include "client/cli/launch/launch_record.h"
#include "client/cli/launch/launch_stop.h"
#include "client/cli/launch/remote_shell.h"
#include "client/cli/launch/shell_quote.h"
#include "client/cli/launch/signal_queue.h"
#include "client/cli/launch/slurm_script.h"
#include "client/cli/launch/ssh_scripts.h"
#include "client/terminal/table.h"
#include "client/terminal/text.h"
#include "proto/states.h"

namespace espalier {
namespace {

namespace fs = std::filesystem;

constexpr double kAnswerSeconds = 60;
constexpr double kCopySeconds = 1800;
constexpr int kReadySeconds = 90;
constexpr double kCheckEvery = 3;
constexpr double kJoinSeconds = 600;
constexpr double kLongestToken = 366 * 86400.0;
constexpr double kDefaultTimeout = 120;
constexpr char kCoordinatorName[] = "coordinator";

// The environment of commands that talk to a launch's coordinator.
Environment EnvironmentOf(const Context& context, const std::string& home, const std::string& id) {
  return WithVariables(context.env(), VariablesOfHome(LaunchHome(home, id)));
}

Context ContextOf(const Context& context, const std::string& home, const std::string& id) {
  return Context(EnvironmentOf(context, home, id), *ParseFlags(CommonFlags(), {}));
}

class SshLaunch {
 public:
  SshLaunch(Context* context, std::string hosts_file)
      : context_(*context),
        home_(HomeOfLaunches(fs::absolute(context->home()).string())),
        hosts_file_(std::move(hosts_file)),
        shell_(context->flags().Text("ssh", "ssh"), [this] { return Interrupted(); }) {
    record_.id = LaunchId(hosts_file_);
    record_.hosts_file = fs::absolute(hosts_file_).string();
    record_.ssh = shell_.ssh();
  }

  // Starts everything; what was started before an error ends again.
  absl::Status Start() {
    auto owner = RandomId();
    if (!owner.ok()) return owner.status();
    record_.owner = *std::move(owner);
    absl::Status status = ClaimLaunch(home_, record_);
    if (absl::IsAlreadyExists(status)) return RunsAlready();
    if (!status.ok()) return status;
    status = ReadHosts();
    if (status.ok()) status = Probe();
    if (status.ok()) status = PlanWorkers();
    if (status.ok()) status = CopyBundle();
    if (status.ok()) status = StartCoordinator();
    if (status.ok()) status = StartWorkers();
    if (status.ok()) status = AwaitWorkers();
    if (status.ok()) return status;
    interrupted_ = false;  // for what follows
    stopping_ = true;
    if (record_.processes.empty()) {
      RemoveLaunchRecord(home_, record_.id);
      return status;
    }
    Say(context_, "stop", "the start has failed; stopping what was started");
    if (absl::Status stopped = StopLaunch(context_, home_, record_); !stopped.ok()) {
      return absl::Status(status.code(), absl::StrCat(status.message(), "\n", stopped.message()));
    }
    return status;
  }

  void Describe() {
    if (context_.json()) {
      nlohmann::ordered_json json;
      json["event"] = "launched";
      json["coordinator"] = record_.coordinator;
      json["home"] = LaunchHome(home_, record_.id);
      json["data"] = record_.data;
      for (const StartedProcess& process : record_.processes) {
        json["processes"].push_back({{"host", process.host.empty() ? "here" : process.host},
                                     {"name", process.name},
                                     {"worker", process.worker},
                                     {"device", process.device}});
      }
      context_.Line(json);
      return;
    }
    Table table({{"host"}, {"process"}, {"worker"}, {"device"}});
    for (const StartedProcess& process : record_.processes) {
      table.Row({process.host.empty() ? "this host" : process.host, process.name, process.worker,
                 process.device});
    }
    context_.out() << table.Render(context_.terminal()) << "coordinator: " << record_.coordinator
                   << ", its data: " << record_.data
                   << "\nuse it:  export ESPALIER_HOME=" << LaunchHome(home_, record_.id)
                   << "\nstop it: " << Call() << " --stop" << std::endl;
  }

  absl::Status Stop() {
    auto record = ReadLaunchRecord(home_, record_.id);
    if (absl::IsNotFound(record.status())) {
      return absl::NotFoundError(
          absl::StrCat("nothing is running of ", hosts_file_, "; `", Call(), "` starts it"));
    }
    if (!record.ok()) return record.status();
    record_ = *std::move(record);
    stopping_ = true;
    return StopLaunch(context_, home_, record_);
  }

 private:
  // For people to copy.
  std::string Call() const { return "espalier launch ssh " + Printable(ShellQuote(hosts_file_)); }

  // The launch of this hosts file that the record is of.
  absl::Status RunsAlready() {
    auto before = ReadLaunchRecord(home_, record_.id);
    if (!before.ok() && !absl::IsNotFound(before.status())) return before.status();
    const std::string coordinator = before.ok() ? before->coordinator : "";
    return absl::AlreadyExistsError(absl::StrCat(
        hosts_file_, " has been launched already; its coordinator: ",
        coordinator.empty() ? "not ready" : coordinator, "; stop it: ", Call(), " --stop"));
  }

  bool Interrupted() {
    // What is being stopped is stopped to the end.
    if (signals_.Wait(1) != 0 && !stopping_) interrupted_ = true;
    return interrupted_;
  }

  absl::Status ReadHosts() {
    auto text = ReadNonemptyFile(hosts_file_);
    if (!text.ok()) return text.status();
    auto hosts = ParseHostFile(*text);
    if (!hosts.ok()) {
      return UsageError(absl::StrCat(hosts_file_, ": ", hosts.status().message()));
    }
    given_ = *std::move(hosts);
    const bool installed = context_.flags().Has("remote-bin");
    for (const char* const flag : {"remote-bin", "data-dir"}) {
      if (context_.flags().Text(flag).find_first_of("\"$`\\\n") == std::string::npos) continue;
      return UsageError(absl::StrCat("--", flag, ": a path without quotes, $ and \\ is expected"));
    }
    if (installed && context_.flags().Has("bundle")) {
      return UsageError(
          "--bundle copies the programs, --remote-bin says that they are there: give "
          "one of them");
    }
    if (installed) return absl::OkStatus();
    auto bundle = FindBundle(context_.flags().Text("bundle"), context_.env().program);
    if (!bundle.ok()) return bundle.status();
    bundle_ = *std::move(bundle);
    return absl::OkStatus();
  }

  absl::Status Probe() {
    auto hosts = ProbeHosts(shell_, given_, bundle_.key);
    if (!hosts.ok()) return hosts.status();
    hosts_ = *std::move(hosts);
    return absl::OkStatus();
  }

  absl::Status CopyBundle() {
    const auto made = std::move(bundle_.made);  // it is no longer needed then
    std::vector<RemoteCall> calls;
    for (const ProbedHost& host : hosts_) {
      if (bundle_.key.empty() || host.has_bundle) continue;
      calls.push_back(
          {host.given.address, "unpack the bundle", UnpackScript(bundle_.key), bundle_.file});
    }
    if (calls.empty()) return absl::OkStatus();
    std::error_code error;
    Say(context_, "copy",
        absl::StrCat("copying the programs to ", calls.size(),
                     calls.size() == 1 ? " host, " : " hosts, ",
                     FormatBytes(static_cast<double>(fs::file_size(bundle_.file, error)))));
    return AllErrors(shell_.Run(calls, kCopySeconds));
  }

  // As a word of a script, with what scripts expand.
  std::string Program(const std::string& name) const {
    const std::string folder = context_.flags().Has("remote-bin")
                                   ? context_.flags().Text("remote-bin")
                                   : BundleFolder(bundle_.key);
    return absl::StrCat("\"", folder, "/", name, "\"");
  }

  RemoteProcess ProcessOf(const std::string& name, const std::string& program, bool systemd) const {
    RemoteProcess process;
    static_cast<ProcessName&>(process) = NameIn(record_, name);
    process.program = Program(program);
    process.systemd = systemd;
    return process;
  }

  // Before they start: whatever comes then, they are stopped.
  absl::Status Keep(const std::vector<StartedProcess>& processes) {
    record_.processes.insert(record_.processes.end(), processes.begin(), processes.end());
    return WriteLaunchRecord(home_, record_);
  }

  // Workers are named after their hosts. The names of their processes differ on all hosts, which
  // may share a home.
  absl::Status PlanWorkers() {
    std::set<std::string> names;
    for (const ProbedHost& host : hosts_) {
      for (size_t slot = 0; slot < host.devices.size(); ++slot) {
        const std::string name = NameOf(host.given) + (slot > 0 ? absl::StrCat("-", slot) : "");
        if (!names.insert(name).second) {
          return UsageError(absl::StrCat(hosts_file_, ": line ", host.given.line,
                                         ": there are two workers ", name,
                                         "; call one of the hosts by another name"));
        }
        workers_.push_back({host.given.address, absl::StrCat("worker-", workers_.size()), name,
                            host.devices[slot]});
      }
    }
    return absl::OkStatus();
  }

  absl::Status StartCoordinator() {
    const bool here = context_.flags().Has("coordinator-here");
    const ProbedHost& first = hosts_[0];
    RemoteProcess process = ProcessOf(kCoordinatorName, "espalierd", !here && first.systemd);
    if (here) {
      auto program = FindProgram(context_.env().program, "server", "espalierd");
      if (!program.ok()) return program.status();
      process.program = ShellQuote(*program);
    }
    process.flags = {"--data-dir=" + context_.flags().Text("data-dir", "{LAUNCH}/data"),
                     "--tls=auto", "--listen=0.0.0.0:0",
                     "--http-listen=", "--ready-file={LAUNCH}/coordinator.ready"};
    const std::string host = here ? "" : first.given.address;
    if (absl::Status s = Keep({{host, kCoordinatorName, "", ""}}); !s.ok()) return s;
    auto started =
        shell_.RunOne({host, "start the coordinator", StartScript(process), ""}, kAnswerSeconds);
    if (!started.ok()) return started.status();
    auto ready =
        shell_.RunOne({host, "start the coordinator", AwaitReadyScript(process, kReadySeconds), ""},
                      kReadySeconds + kAnswerSeconds);
    if (!ready.ok()) return ready.status();
    Answers answers = ReadAnswers(*ready);
    auto listens = ParseHostAndPort(answers["grpc"], "the coordinator's address");
    if (!listens.ok()) return listens.status();
    record_.coordinator =
        JoinHostAndPort(here ? first.asker_address : first.own_address, listens->port);
    record_.data = absl::StrReplaceAll(context_.flags().Text("data-dir", "{LAUNCH}/data"),
                                       {{"{LAUNCH}", answers["folder"]}});
    std::string ca, key;
    if (!absl::Base64Unescape(answers["ca"], &ca) || !absl::Base64Unescape(answers["key"], &key) ||
        key.empty()) {
      return absl::InternalError("the coordinator's CA and key did not arrive");
    }
    if (absl::Status s = WriteLaunchHome(home_, record_, ca, key); !s.ok()) return s;
    Say(context_, "coordinator",
        absl::StrCat("coordinator on ", here ? "this host" : NameOf(first.given), ": ",
                     record_.coordinator));
    return WriteLaunchRecord(home_, record_);
  }

  double Timeout() const { return context_.flags().Number("timeout", kDefaultTimeout); }

  // A token with which each of the workers can join once.
  absl::StatusOr<std::string> MakeToken(int workers) {
    Context own = ContextOf(context_, home_, record_.id);
    auto client = own.client();
    absl::Status status = client.status();
    if (status.ok()) {
      v1::CreateTokenRequest request;
      request.add_roles("worker");
      // As long as the workers are waited for, at least.
      request.set_ttl_seconds(std::clamp(Timeout() + 60, kJoinSeconds, kLongestToken));
      request.set_uses(workers);
      auto token = (*client)->CreateToken(request);
      if (token.ok()) return token->text();
      status = token.status();
    }
    if (!IsUnreachable(status)) return status;
    return absl::UnavailableError(absl::StrCat(
        "this host cannot reach the coordinator: ", status.message(), "\nremedy: let TCP to ",
        record_.coordinator.substr(0, record_.coordinator.rfind(':')),
        " through from here, or start the coordinator here with --coordinator-here"));
  }

  absl::Status StartWorkers() {
    auto token = MakeToken(static_cast<int>(workers_.size()));
    if (!token.ok()) return token.status();
    if (absl::Status s = Keep(workers_); !s.ok()) return s;
    std::vector<RemoteCall> calls;
    auto worker = workers_.begin();
    for (const ProbedHost& host : hosts_) {
      const int count = static_cast<int>(host.devices.size());
      for (int slot = 0; slot < count; ++slot, ++worker) {
        RemoteProcess process = ProcessOf(worker->name, "espalier-worker", host.systemd);
        process.flags = {"--coordinator=" + record_.coordinator,
                         "--join-file={LAUNCH}/" + worker->name + ".secret",
                         "--name=" + worker->worker, "--device=" + worker->device,
                         absl::StrCat("--threads=", std::max(1, host.cpus / count))};
        process.secret = *token;
        if (context_.flags().Has("trusted-network")) {
          process.flags.emplace_back("--trusted-network");
        }
        if (worker->device == "cpu" && host.memory > 0) {
          process.flags.push_back(absl::StrCat("--memory-limit=", host.memory / count / 4 * 3));
        }
        calls.push_back({worker->host, "start worker " + worker->worker, StartScript(process), ""});
      }
    }
    return AllErrors(shell_.Run(calls, kAnswerSeconds));
  }

  // Fails if one of these workers has ended: with what it said last, which is why.
  absl::Status CheckWorkers(const std::vector<StartedProcess>& missing) {
    std::vector<RemoteCall> calls;
    for (const StartedProcess& worker : missing) {
      calls.push_back({worker.host, "run worker " + worker.worker,
                       CheckScript(NameIn(record_, worker.name)), ""});
    }
    return AllErrors(shell_.Run(calls, kAnswerSeconds));
  }

  // The workers of this launch that the coordinator does not know, or no longer.
  absl::StatusOr<std::vector<StartedProcess>> Missing(Context* own) {
    auto client = own->client();
    if (!client.ok()) return client.status();
    auto status = (*client)->Status();
    if (!status.ok()) return status.status();
    std::vector<StartedProcess> missing = workers_;
    for (const v1::WorkerInfo& joined : status->workers()) {
      if (IsGone(joined.state())) continue;
      std::erase_if(missing, [&](const auto& worker) { return worker.worker == joined.name(); });
    }
    return missing;
  }

  absl::Status AwaitWorkers() {
    Context own = ContextOf(context_, home_, record_.id);
    const std::function<double()>& seconds = context_.env().seconds;
    const double limit = Timeout();
    const double begin = seconds();
    double checked = begin;
    size_t said = 0;
    while (!Interrupted()) {
      auto missing = Missing(&own);
      if (!missing.ok()) return missing.status();
      if (const size_t joined = workers_.size() - missing->size(); joined != said) {
        said = joined;
        Say(context_, "workers",
            absl::StrCat(said, " of ", workers_.size(), " workers have joined"));
      }
      if (missing->empty()) return absl::OkStatus();
      const double now = seconds();
      if (now - checked > kCheckEvery) {
        if (absl::Status s = CheckWorkers(*missing); !s.ok()) return s;
        checked = seconds();
      }
      if (now - begin > limit) {
        const auto name = [](std::string* out, const StartedProcess& worker) {
          absl::StrAppend(out, worker.worker, " (", worker.name, ".log)");
        };
        return absl::DeadlineExceededError(
            absl::StrCat("not within ", limit,
                         " s: these workers have not joined: ", absl::StrJoin(*missing, ", ", name),
                         "; their logs are in ", "~/.espalier/launch/", record_.id, " there"));
      }
      if (signals_.Wait(200) != 0) interrupted_ = true;
    }
    return InterruptedError("interrupted");
  }

  SignalQueue signals_;  // before the client's threads
  Context& context_;
  const std::string home_;
  const std::string hosts_file_;
  const RemoteShell shell_;
  bool interrupted_ = false;
  bool stopping_ = false;
  Bundle bundle_;  // empty with --remote-bin
  std::vector<LaunchHost> given_;
  std::vector<ProbedHost> hosts_;        // in the same order
  std::vector<StartedProcess> workers_;  // of the hosts, in the same order
  LaunchRecord record_;
};

}  // namespace

absl::Status LaunchSsh(Context& context, const std::vector<std::string>& words) {
  if (words.empty()) {
    return UsageError("missing: a hosts file, with a line per host: host [slots=N]");
  }
  const std::string& hosts_file = words[0];
  const std::vector<std::string> train(words.begin() + 1, words.end());
  if (context.flags().Has("stop")) {
    if (!train.empty()) return UsageError("--stop starts no training");
    return SshLaunch(&context, hosts_file).Stop();
  }
  if (!train.empty()) {
    if (absl::Status s = CheckTrainWords(train, /*batch=*/false); !s.ok()) return s;
  }
  {
    SshLaunch launch(&context, hosts_file);
    if (absl::Status s = launch.Start(); !s.ok()) return s;
    launch.Describe();
  }
  if (train.empty()) return absl::OkStatus();
  const std::string home = HomeOfLaunches(fs::absolute(context.home()).string());
  return RunTrain(context, EnvironmentOf(context, home, LaunchId(hosts_file)), train);
}

}  // namespace espalier
