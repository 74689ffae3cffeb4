// `espalier launch`.
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/nearest.h"
#include "client/cli/launch/launch.h"
#include "client/cli/launch/slurm_script.h"
#include "client/terminal/text.h"

namespace espalier {
namespace {

std::vector<FlagSpec> FlagsOfSlurm() {
  std::vector<FlagSpec> flags = SlurmScriptFlags();
  flags.push_back({"detach", FlagType::kSwitch, "", "return once it is submitted"});
  return flags;
}

std::vector<FlagSpec> FlagsOfSshAndKubernetes() {
  return {
      {"stop", FlagType::kSwitch, "", "stop what was started for this hosts file or namespace"},
      {"trusted-network", FlagType::kSwitch, "",
       "tensors pass in clear between hosts, as NCCL needs it"},
      {"timeout", FlagType::kNumber, "SECONDS",
       "how long the workers may take to join (120; of k8s, where nodes may fetch images first, "
       "600)",
       0, 1}};
}

std::vector<FlagSpec> FlagsOfKubernetes() {
  return {{"image", FlagType::kText, "NAME",
           "the image with the programs, which deploy/Containerfile builds: REGISTRY/espalier:TAG"},
          {"workers", FlagType::kInt, "N", "pods of workers (2)", 0, 1, 10000},
          {"cpu", FlagType::kText, "CORES", "cores that each worker asks for, such as 4 (2)"},
          {"memory", FlagType::kText, "SIZE", "memory of each worker, such as 8Gi (4Gi)"},
          {"gpu", FlagType::kSwitch, "", "one GPU of NVIDIA for each worker"},
          {"namespace", FlagType::kText, "NAME", "namespace (that of kubectl's context)"},
          {"context", FlagType::kText, "NAME", "kubectl's context (its current one)"},
          {"kubectl", FlagType::kText, "PROGRAM", "kubectl's path (kubectl)"},
          {"delete-data", FlagType::kSwitch, "",
           "with --stop: also delete the coordinator's volume, with its jobs and models"}};
}

std::vector<FlagSpec> FlagsOfSsh() {
  return {{"coordinator-here", FlagType::kSwitch, "",
           "start the coordinator on this host, not on the first of the file"},
          {"bundle", FlagType::kText, "FILE|FOLDER",
           "the programs that are copied, as deploy/bundle.sh packs them (those of which "
           "this program is part)"},
          {"remote-bin", FlagType::kText, "FOLDER",
           "the programs are in this folder of the hosts; nothing is copied"},
          {"data-dir", FlagType::kText, "FOLDER",
           "the coordinator's data folder, on its host (one in ~/.espalier/launch)"},
          {"ssh", FlagType::kText, "COMMAND", "the client and its options (ssh)"}};
}

absl::Status RunLaunch(Context& context) {
  const std::vector<std::string>& words = context.flags().positional();
  const std::string verb = words.empty() ? "" : words[0];
  std::vector<std::string> rest;
  if (!words.empty()) rest.assign(words.begin() + 1, words.end());
  if (verb == "slurm" || verb == "ssh" || verb == "k8s") {
    const std::string command = "launch " + verb;
    absl::Status owned = CheckOwner(context.flags(), FlagsOfSlurm(), "launch slurm", command);
    if (owned.ok()) owned = CheckOwner(context.flags(), FlagsOfSsh(), "launch ssh", command);
    if (owned.ok()) owned = CheckOwner(context.flags(), FlagsOfKubernetes(), "launch k8s", command);
    if (owned.ok() && verb == "slurm") {
      owned = CheckOwner(context.flags(), FlagsOfSshAndKubernetes(), "launch ssh", command);
    }
    if (!owned.ok()) return owned;
    if (verb == "slurm") return LaunchSlurm(context, std::move(rest));
    return verb == "ssh" ? LaunchSsh(context, rest) : LaunchKubernetes(context, rest);
  }
  const std::string near = Nearest(verb, {"slurm", "ssh", "k8s"});
  return UsageError(
      absl::StrCat(verb.empty() ? "missing: where" : absl::StrCat("launch ", Printable(verb)),
                   "; accepted are slurm, ssh, k8s",
                   near.empty() ? "" : absl::StrCat("; did you mean ", near, "?")));
}

}  // namespace

Command LaunchCommand() {
  Command c;
  c.name = "launch";
  c.summary = "start a coordinator and workers on a cluster";
  c.usage =
      "launch slurm [flags of slurm script] -- train ... | launch ssh HOSTS [flags] [-- train ...] "
      "| launch k8s --image=NAME [flags] [-- train ...] | launch ssh HOSTS --stop | "
      "launch k8s --stop";
  c.description =
      "slurm submits the batch file of `espalier slurm script` and follows it to its end.\n"
      "ssh copies the programs to the hosts of a file (a line: host [slots=N] "
      "[devices=cuda:0,cuda:1]), starts\na coordinator on the first one and workers on all, and "
      "trains.\nk8s does the same in a namespace of Kubernetes, through kubectl.\n"
      "--stop ends what ssh or k8s has started.";
  for (const auto& [verb, flags] :
       {std::pair("slurm", FlagsOfSlurm()), std::pair("ssh", FlagsOfSsh()),
        std::pair("k8s", FlagsOfKubernetes()),
        std::pair("ssh and k8s", FlagsOfSshAndKubernetes())}) {
    for (FlagSpec flag : flags) {
      flag.doc = absl::StrCat("of ", verb, ": ", flag.doc);
      c.flags.push_back(std::move(flag));
    }
  }
  c.examples = {
      {"a training on two nodes",
       "espalier launch slurm --nodes=2 --cpus-per-task=8 -- train --model=llama:llm -d "
       "book.txt --steps=4000"},
      {"a coordinator and workers on hosts of your own, and a training on them",
       "espalier launch ssh hosts.txt -- train --model=llama:tiny -d book.txt --steps=200"},
      {"stop them", "espalier launch ssh hosts.txt --stop"},
      {"a coordinator and four workers in Kubernetes, and a training on them",
       "espalier launch k8s --image=registry.example/espalier:1 --workers=4 -- train "
       "--model=llama:tiny -d book.txt --steps=200"}};
  c.run = RunLaunch;
  return c;
}

}  // namespace espalier
