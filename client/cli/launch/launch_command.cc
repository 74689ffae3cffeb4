// `espalier launch`.
#include "absl/strings/str_cat.h"
#include "base/nearest.h"
#include "client/cli/launch/launch.h"
#include "client/cli/launch/slurm_script.h"
#include "client/terminal/text.h"

namespace espalier {
namespace {

absl::Status RunLaunch(Context& context) {
  const std::vector<std::string>& words = context.flags().positional();
  const std::string verb = words.empty() ? "" : words[0];
  std::vector<std::string> rest;
  if (!words.empty()) rest.assign(words.begin() + 1, words.end());
  if (verb == "slurm") return LaunchSlurm(context, std::move(rest));
  if (verb == "ssh") return LaunchSsh(context, rest);
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
  c.flags = SlurmScriptFlags();
  for (FlagSpec& flag : c.flags) flag.doc = "of slurm: " + flag.doc;
  for (const FlagSpec& flag : std::vector<FlagSpec>{
           {"detach", FlagType::kSwitch, "", "of slurm: return once it is submitted"},
           {"stop", FlagType::kSwitch, "", "of ssh: stop what was started for this hosts file"},
           {"coordinator-here", FlagType::kSwitch, "",
            "of ssh: start the coordinator on this host, not on the first of the file"},
           {"bundle", FlagType::kText, "FILE|FOLDER",
            "of ssh: the programs that are copied, as deploy/bundle.sh packs them (those of which "
            "this program is part)"},
           {"remote-bin", FlagType::kText, "FOLDER",
            "of ssh: the programs are in this folder of the hosts; nothing is copied"},
           {"data-dir", FlagType::kText, "FOLDER",
            "of ssh: the coordinator's data folder, on its host (one in ~/.espalier/launch)"},
           {"trusted-network", FlagType::kSwitch, "",
            "of ssh: tensors pass in clear between hosts, as NCCL needs it"},
           {"ssh", FlagType::kText, "COMMAND", "of ssh: the client and its options (ssh)"},
           {"timeout", FlagType::kNumber, "SECONDS",
            "of ssh: how long the workers may take to join (120)", 0, 1}}) {
    c.flags.push_back(flag);
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
