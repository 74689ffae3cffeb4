// `espalier launch k8s`: a coordinator and workers in a namespace of Kubernetes, through kubectl
// and deploy/kubernetes.
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/sha256.h"
#include "client/cli/launch/child_process.h"
#include "client/cli/launch/kubernetes_overlay.h"
#include "client/cli/launch/launch.h"
#include "client/cli/launch/launch_context.h"
#include "client/cli/launch/launch_record.h"
#include "client/cli/launch/port_forward.h"
#include "client/cli/launch/shell_quote.h"
#include "client/cli/launch/slurm_script.h"
#include "client/terminal/text.h"

namespace espalier {
namespace {

namespace fs = std::filesystem;

constexpr double kRolloutTimeout = 600;
constexpr int kGrpcPort = 7070;
// As the token is described in docs/operations/kubernetes.md.
constexpr char kTokenLife[] = "30d";
constexpr int kLeastUses = 100;
constexpr char kCoordinatorPod[] = "espalier-coordinator-0";
constexpr char kCoordinatorService[] = "service/espalier-coordinator";
constexpr char kTlsFolder[] = "/var/lib/espalier/data/tls";
constexpr char kVolume[] = "data-espalier-coordinator-0";
// Of each pod: its name, why its container waits, and why no node takes it.
constexpr char kTroubles[] =
    "jsonpath={range .items[*]}{.metadata.name}{\"\\t\"}"
    "{.status.containerStatuses[*].state.waiting.reason}{\"\\t\"}"
    "{.status.conditions[?(@.reason==\"Unschedulable\")].message}{\"\\n\"}{end}";
constexpr absl::Duration kPoll = absl::Milliseconds(100);
constexpr int kPollsPerLook = 50;
constexpr char kAll[] = "app.kubernetes.io/name=espalier";  // label of all pods

class KubernetesLaunch {
 public:
  explicit KubernetesLaunch(Context* context)
      : context_(*context), home_(HomeOfLaunches(fs::absolute(context->home()).string())) {
    kubectl_ = {context->flags().Text("kubectl", "kubectl")};
    for (const char* const flag : {"context", "namespace"}) {
      if (context->flags().Has(flag)) {
        kubectl_.push_back(absl::StrCat("--", flag, "=", context->flags().Text(flag)));
      }
    }
    // One launch of a namespace, whatever folder it is started in.
    record_.id = Sha256Hex(absl::StrCat("kubernetes\n",
                                        absl::StrJoin(kubectl_.begin() + 1, kubectl_.end(), "\n")))
                     .substr(0, 10);
    record_.hosts_file = "kubernetes";
    record_.coordinator = absl::StrCat("localhost:", kGrpcPort);
  }

  // May be repeated, with other numbers or another image.
  absl::Status Start() {
    KubernetesOverlay overlay = Overlay();
    SayWhere();
    // Pods that wait for a secret look for it only now and then: the token comes first.
    const bool joined =
        RunKubectl("look for the workers' token", {"get", "secret", "espalier-join"}).ok();
    const int workers = overlay.workers;
    if (overlay.gpu && workers > 1 && !overlay.trusted_network) {
      Say(context_, "warning",
          "jobs over the GPUs of several workers need --trusted-network: NCCL does not encrypt");
    }
    if (!joined) overlay.workers = 0;
    if (absl::Status s = Apply(overlay); !s.ok()) return s;
    Say(context_, "coordinator", "waiting for the coordinator's pod");
    if (absl::Status s = AwaitRollout("espalier-coordinator"); !s.ok()) return s;
    if (absl::Status s = ReplaceToken(workers); !s.ok()) return s;
    overlay.workers = workers;
    if (!joined) {
      if (absl::Status s = Apply(overlay); !s.ok()) return s;
    }
    Say(context_, "workers",
        absl::StrCat("waiting for ", workers, workers == 1 ? " worker" : " workers"));
    if (absl::Status s = AwaitRollout("espalier-worker"); !s.ok()) return s;
    return WriteHome();
  }

  void Describe() {
    const std::string forward =
        absl::StrCat(Call(), " port-forward ", kCoordinatorService, " 7070 8080");
    const std::string home = LaunchHome(home_, record_.id);
    if (context_.json()) {
      nlohmann::ordered_json json;
      json["event"] = "launched";
      json["workers"] = Workers();
      json["home"] = home;
      json["port_forward"] = forward;
      context_.Line(json);
      return;
    }
    context_.out() << "a coordinator and " << Workers() << (Workers() == 1 ? " worker" : " workers")
                   << " are running\nuse it:  " << forward
                   << " &\n         export ESPALIER_HOME=" << home
                   << "\nstop it: espalier launch k8s" << FlagsOfPlace() << " --stop" << std::endl;
  }

  absl::Status Train(const std::vector<std::string>& words) {
    std::vector<std::string> command = kubectl_;
    command.insert(command.end(), {"port-forward", kCoordinatorService});
    auto forward = PortForward::Start(std::move(command), kGrpcPort);
    if (!forward.ok()) return forward.status();
    const std::string home = LaunchHome(home_, record_.id);
    std::map<std::string, std::string> variables = VariablesOfHome(home);
    // The home's CA and key are for the address that it names.
    variables["ESPALIER_COORDINATOR"] = absl::StrCat("localhost:", (*forward)->port());
    variables["ESPALIER_CA_FILE"] = home + "/ca.pem";
    variables["ESPALIER_TOKEN_FILE"] = home + "/key";
    return RunTrain(context_, WithVariables(context_.env(), std::move(variables)), words);
  }

  absl::Status Stop() {
    auto folder = KustomizationFolder::Make({.image = "espalier"});
    if (!folder.ok()) return folder.status();
    auto deleted =
        RunKubectl("delete what runs", {"delete", "-k", folder->path(), "--ignore-not-found"});
    if (!deleted.ok()) return deleted.status();
    auto secret = RunKubectl("delete the workers' token",
                             {"delete", "secret", "espalier-join", "--ignore-not-found"});
    if (!secret.ok()) return secret.status();
    const bool data = context_.flags().Has("delete-data");
    if (data) {
      auto volume = RunKubectl("delete the volume",
                               {"delete", "persistentvolumeclaim", kVolume, "--ignore-not-found"});
      if (!volume.ok()) return volume.status();
    }
    RemoveLaunchRecord(home_, record_.id);
    Say(context_, "stopped",
        absl::StrCat("coordinator and workers are deleted; the volume ", kVolume,
                     data ? ", with jobs and models, too"
                          : " stays, with jobs and models: the next launch goes on with them, and "
                            "--stop --delete-data deletes it"));
    return absl::OkStatus();
  }

 private:
  int Workers() const { return static_cast<int>(context_.flags().Int("workers", 2)); }

  KubernetesOverlay Overlay() const {
    return {.image = context_.flags().Text("image"),
            .workers = Workers(),
            .cpu = context_.flags().Text("cpu"),
            .memory = context_.flags().Text("memory"),
            .gpu = context_.flags().Has("gpu"),
            .trusted_network = context_.flags().Has("trusted-network")};
  }

  std::string FlagsOfPlace() const {
    return absl::StrJoin(kubectl_.begin() + 1, kubectl_.end(), "",
                         [](std::string* out, const std::string& flag) {
                           absl::StrAppend(out, " ", Printable(ShellQuote(flag)));
                         });
  }
  // For people to copy.
  std::string Call() const { return Printable(ShellQuote(kubectl_[0])) + FlagsOfPlace(); }

  // Returns what kubectl wrote. `what` completes "kubectl cannot ...".
  absl::StatusOr<std::string> RunKubectl(const std::string& what, std::vector<std::string> words,
                                         const std::string& input = "") const {
    ChildOptions options;
    options.command = kubectl_;
    options.command.insert(options.command.end(), words.begin(), words.end());
    options.input = input;
    options.keep_output = true;
    auto child = ChildProcess::Run(options);
    if (absl::IsNotFound(child.status())) {
      return absl::NotFoundError(
          absl::StrCat(kubectl_[0], " is not there; install it, or give its path with --kubectl"));
    }
    if (!child.ok()) return child.status();
    if ((*child)->exit_code() == 0) return (*child)->output();
    const std::string said = std::string(absl::StripAsciiWhitespace((*child)->errors()));
    if (absl::StrContains(said, "server localhost:8080 was refused") ||
        absl::StrContains(said, "localhost:8080: connect")) {
      return absl::UnavailableError(absl::StrCat(
          "kubectl knows no cluster: `", Printable(ShellQuote(kubectl_[0])),
          " config get-contexts` lists those that it has, and --context=NAME chooses one"));
    }
    std::string remedy;
    if (absl::StrContains(said, "namespaces \"") && absl::StrContains(said, "not found")) {
      remedy = absl::StrCat("; make it: ", Call(), " create namespace ",
                            Printable(ShellQuote(context_.flags().Text("namespace"))));
    }
    return absl::UnavailableError(
        absl::StrCat("kubectl cannot ", what, ": ", Printable(said, /*keep_lines=*/true), remedy));
  }

  absl::Status Apply(const KubernetesOverlay& overlay) const {
    auto folder = KustomizationFolder::Make(overlay);
    if (absl::IsInvalidArgument(folder.status()))
      return UsageError(std::string(folder.status().message()));
    if (!folder.ok()) return folder.status();
    return RunKubectl("apply the manifests", {"apply", "-k", folder->path()}).status();
  }

  // Where the objects go, before anything changes there.
  void SayWhere() const {
    const ParsedFlags& flags = context_.flags();
    std::string cluster = flags.Text("context"), space = flags.Text("namespace");
    // In a pod kubectl has no context.
    if (cluster.empty()) cluster = FirstLine({"config", "current-context"});
    if (space.empty())
      space = FirstLine({"config", "view", "--minify", "-o", "jsonpath={..namespace}"});
    Say(context_, "where",
        absl::StrCat("namespace ", space.empty() ? "default" : Printable(space),
                     cluster.empty() ? "" : absl::StrCat(" of the context ", Printable(cluster))));
  }
  // Empty where kubectl fails.
  std::string FirstLine(const std::vector<std::string>& words) const {
    const auto said = RunKubectl("read its configuration", words);
    if (!said.ok()) return "";
    return std::string(absl::StripAsciiWhitespace(said->substr(0, said->find('\n'))));
  }

  // Says why pods do not run: an image that cannot be fetched, no node with room.
  void SayTroubles(std::string* before) const {
    const auto pods = RunKubectl("list pods", {"get", "pods", "--selector", kAll, "-o", kTroubles});
    if (!pods.ok() || *pods == *before) return;
    *before = *pods;
    for (const absl::string_view line : absl::StrSplit(*pods, '\n')) {
      const std::vector<std::string> parts = absl::StrSplit(line, '\t');
      if (parts.size() < 3 || (parts[1].empty() && parts[2].empty())) continue;
      if (parts[1] == "ContainerCreating" || parts[1] == "PodInitializing") continue;
      Say(context_, "pod",
          Printable(absl::StrCat(parts[0], ": ", parts[1].empty() ? parts[2] : parts[1])));
    }
  }

  absl::Status AwaitRollout(const std::string& set) const {
    const double timeout = context_.flags().Number("timeout", kRolloutTimeout);
    ChildOptions options;
    options.command = kubectl_;
    options.command.insert(options.command.end(),
                           {"rollout", "status", "statefulset/" + set,
                            absl::StrCat("--timeout=", static_cast<int64_t>(timeout), "s")});
    options.keep_output = true;
    auto rollout = ChildProcess::Start(options);
    if (!rollout.ok()) return rollout.status();
    std::string troubles;
    for (int polls = 1; !(*rollout)->Ended(); ++polls) {
      absl::SleepFor(kPoll);
      if (polls % kPollsPerLook == 0) SayTroubles(&troubles);
    }
    if ((*rollout)->exit_code() == 0) return absl::OkStatus();
    const absl::Status done = absl::UnavailableError(absl::StrCat(
        "kubectl does not see all pods of ", set, " run: ",
        Printable(absl::StripAsciiWhitespace((*rollout)->errors()), /*keep_lines=*/true)));
    // Why: an image that cannot be fetched, no node with room, a volume that nobody makes.
    const auto pods = RunKubectl("list pods", {"get", "pods", "--selector", kAll});
    return absl::Status(
        done.code(), absl::StrCat(done.message(), pods.ok() ? "\n" + Printable(*pods, true) : "\n",
                                  "see why: ", Call(), " describe pods --selector ", kAll,
                                  "; what runs stays: launch again, or --stop"));
  }

  // Workers that join later take a use each.
  absl::Status ReplaceToken(int workers) const {
    const auto token =
        Exec({"espalier", "token", "create", "--role=worker", absl::StrCat("--ttl=", kTokenLife),
              absl::StrCat("--uses=", std::max(kLeastUses, 10 * workers))});
    if (!token.ok()) return token.status();
    nlohmann::ordered_json secret;
    secret["apiVersion"] = "v1";
    secret["kind"] = "Secret";
    secret["metadata"]["name"] = "espalier-join";
    secret["type"] = "Opaque";
    secret["stringData"]["token"] = absl::StripAsciiWhitespace(*token);
    return RunKubectl("store the workers' token", {"apply", "-f", "-"}, secret.dump()).status();
  }

  // In the coordinator's pod.
  absl::StatusOr<std::string> Exec(const std::vector<std::string>& words) const {
    std::vector<std::string> command = {"exec", kCoordinatorPod, "--"};
    command.insert(command.end(), words.begin(), words.end());
    return RunKubectl(absl::StrCat("run '", words[0], "' in ", kCoordinatorPod),
                      std::move(command));
  }

  absl::Status WriteHome() {
    auto ca = Exec({"cat", absl::StrCat(kTlsFolder, "/ca/current/ca.pem")});
    if (!ca.ok()) return ca.status();
    auto key = Exec({"cat", absl::StrCat(kTlsFolder, "/admin.key")});
    if (!key.ok()) return key.status();
    if (absl::Status s = WriteLaunchRecord(home_, record_); !s.ok()) return s;
    return WriteLaunchHome(home_, record_, *ca, *key);
  }

  Context& context_;
  const std::string home_;
  std::vector<std::string> kubectl_;  // and the flags that say which cluster and namespace
  LaunchRecord record_;
};

}  // namespace

absl::Status LaunchKubernetes(Context& context, const std::vector<std::string>& words) {
  KubernetesLaunch launch(&context);
  if (context.flags().Has("stop")) {
    if (!words.empty()) return UsageError("--stop starts no training");
    return launch.Stop();
  }
  if (context.flags().Has("delete-data")) return UsageError("--delete-data is for --stop");
  if (!context.flags().Has("image")) {
    return UsageError(
        "missing: --image=REGISTRY/espalier:TAG, which the nodes can fetch; build it with "
        "deploy/Containerfile");
  }
  if (!words.empty()) {
    if (absl::Status s = CheckTrainWords(words, /*batch=*/false); !s.ok()) return s;
  }
  if (absl::Status s = launch.Start(); !s.ok()) return s;
  launch.Describe();
  return words.empty() ? absl::OkStatus() : launch.Train(words);
}

}  // namespace espalier
