// A task's part of a batch job: the worker, with what SLURM gives the task.
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/machine_memory.h"
#include "base/net/own_address.h"
#include "client/cli/daemon.h"
#include "client/cli/launch/slurm.h"
#include "client/cli/launch/slurm_environment.h"

namespace espalier {
namespace {

int CpusInMask() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (sched_getaffinity(0, sizeof(mask), &mask) != 0) return 1;
  return std::max(1, CPU_COUNT(&mask));
}

// A file in memory with the text, which the program that this process becomes can read.
absl::StatusOr<std::string> HandOn(const std::string& text) {
  const int file = memfd_create("join-token", 0);
  if (file < 0 || fchmod(file, 0600) != 0 ||
      write(file, text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    return absl::ErrnoToStatus(errno, "cannot keep the token in memory");
  }
  return absl::StrCat("/proc/self/fd/", file);
}

}  // namespace

absl::Status RunSlurmWorker(Context& context) {
  if (absl::Status s = CheckArguments(context, 1, 1, ""); !s.ok()) return s;
  const char* const address = context.env().getenv("ESPALIER_COORDINATOR");
  if (address == nullptr) {
    return absl::FailedPreconditionError(
        "ESPALIER_COORDINATOR is not set; `espalier slurm run` in the batch file starts the "
        "coordinator, and the workers with its address");
  }
  auto task = ReadSlurmTask(context.env().getenv, {CpusInMask(), MachineMemory()});
  if (!task.ok()) return task.status();
  auto program = FindProgram(context.env().program, "worker", "espalier-worker");
  if (!program.ok()) return program.status();
  auto coordinator = ParseHostAndPort(address, "ESPALIER_COORDINATOR");
  if (!coordinator.ok()) return coordinator.status();
  // srun was called where the coordinator runs, and SLURM knows an address of that host that this
  // one reaches, whatever the names mean here.
  const std::string& host = task->launcher.empty() ? coordinator->host : task->launcher;
  std::vector<std::string> words = {
      *program, "--coordinator=" + JoinHostAndPort(host, coordinator->port), "--name=" + task->name,
      "--device=" + task->device, absl::StrCat("--threads=", task->threads)};
  if (const char* const token = context.env().getenv("ESPALIER_JOIN_TOKEN"); token != nullptr) {
    auto file = HandOn(token);
    if (!file.ok()) return file.status();
    words.push_back("--join-file=" + *file);
  }
  if (context.flags().Has("trusted-network")) words.emplace_back("--trusted-network");
  // A GPU's limit is its own memory.
  if (task->device == "cpu") {
    words.push_back(absl::StrCat("--memory-limit=", task->memory / 4 * 3));
  }
  if (!task->cache.empty()) words.push_back("--cache-dir=" + task->cache);
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  execv(argv[0], argv.data());
  return absl::ErrnoToStatus(errno, absl::StrCat("cannot run ", words[0]));
}

}  // namespace espalier
