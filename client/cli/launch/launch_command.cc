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

std::vector<FlagSpec> FlagsOfSsh() {
  return {{"stop", FlagType::kSwitch, "", "stop what was started for this hosts file"},
          {"coordinator-here", FlagType::kSwitch, "",
           "start the coordinator on this host, not on the first of the file"},
          {"bundle", FlagType::kText, "FILE|FOLDER",
           "the programs that are copied, as deploy/bundle.sh packs them (those of which "
           "this program is part)"},
          {"remote-bin", FlagType::kText, "FOLDER",
           "the programs are in this folder of the hosts; nothing is copied"},
          {"data-dir", FlagType::kText, "FOLDER",
           "the coordinator's data folder, on its host (one in ~/.espalier/launch)"},
          {"trusted-network", FlagType::kSwitch, "",
           "tensors pass in clear between hosts, as NCCL needs it"},
          {"ssh", FlagType::kText, "COMMAND", "the client and its options (ssh)"},
          {"timeout", FlagType::kNumber, "SECONDS", "how long the workers may take to join (120)",
           0, 1}};
}

absl::Status RunLaunch(Context& context) {
  const std::vector<std::string>& words = context.flags().positional();
  const std::string verb = words.empty() ? "" : words[0];
  std::vector<std::string> rest;
  if (!words.empty()) rest.assign(words.begin() + 1, words.end());
  if (verb == "slurm" || verb == "ssh") {
    const std::string command = "launch " + verb;
    absl::Status owned = CheckOwner(context.flags(), FlagsOfSlurm(), "launch slurm", command);
    if (owned.ok()) owned = CheckOwner(context.flags(), FlagsOfSsh(), "launch ssh", command);
    if (!owned.ok()) return owned;
    return verb == "slurm" ? LaunchSlurm(context, std::move(rest)) : LaunchSsh(context, rest);
  }
  const std::string near = Nearest(verb, {"slurm", "ssh"});
  return UsageError(absl::StrCat(
      verb.empty() ? "missing: where" : absl::StrCat("launch ", Printable(verb)),
      "; accepted are slurm, ssh", near.empty() ? "" : absl::StrCat("; did you mean ", near, "?")));
}

}  // namespace

Command LaunchCommand() {
  Command c;
  c.name = "launch";
  c.summary = "start a coordinator and workers on a cluster";
  c.usage =
      "launch slurm [flags of slurm script] -- train ... | launch ssh HOSTS [flags] [-- train ...] "
      "| "
      "launch ssh HOSTS --stop";
  c.description =
      "slurm submits the batch file of `espalier slurm script` and follows it to its end.\n"
      "ssh copies the programs to the hosts of a file (a line: host [slots=N] "
      "[devices=cuda:0,cuda:1]), starts\na coordinator on the first one and workers on all, and "
      "trains. --stop ends what it has started.";
  for (const auto& [verb, flags] :
       {std::pair("slurm", FlagsOfSlurm()), std::pair("ssh", FlagsOfSsh())}) {
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
      {"stop them", "espalier launch ssh hosts.txt --stop"}};
  c.run = RunLaunch;
  return c;
}

}  // namespace espalier
