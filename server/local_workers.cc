#include "server/local_workers.h"

#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/child_descriptors.h"
#include "base/machine_memory.h"

namespace espalier {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(100);
constexpr absl::Duration kInitialBackoff = absl::Milliseconds(200);
constexpr absl::Duration kMaxBackoff = absl::Seconds(10);
constexpr absl::Duration kHealthyUptime = absl::Seconds(30);  // resets the backoff
constexpr absl::Duration kLeaveTime = absl::Seconds(10);

std::string HowItEnded(int status) {
  if (WIFSIGNALED(status)) return absl::StrCat("signal ", WTERMSIG(status));
  return absl::StrCat("exit code ", WEXITSTATUS(status));
}

}  // namespace

absl::StatusOr<std::string> FindWorkerProgram() {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::filesystem::path beside = self.parent_path() / "espalier-worker";
  const std::filesystem::path in_tree = self.parent_path().parent_path() / "worker/espalier-worker";
  for (const std::filesystem::path& path : {beside, in_tree}) {
    if (access(path.c_str(), X_OK) == 0) return path.string();
  }
  return absl::NotFoundError(absl::StrCat("espalier-worker is neither at ", beside.string(),
                                          " nor at ", in_tree.string(),
                                          "; build it: bazel build //worker:espalier-worker"));
}

absl::StatusOr<std::unique_ptr<LocalWorkers>> LocalWorkers::Start(
    const LocalWorkersOptions& options) {
  if (access(options.program.c_str(), X_OK) != 0) {
    return absl::NotFoundError(
        absl::StrCat(options.program, ": ", std::strerror(errno), "; it must be a program"));
  }
  auto workers = std::unique_ptr<LocalWorkers>(new LocalWorkers(options));
  workers->processes_.resize(static_cast<size_t>(options.count));
  LocalWorkers* raw = workers.get();
  workers->loop_ = std::thread([raw] { raw->Loop(); });
  return workers;
}

LocalWorkers::~LocalWorkers() { Stop(); }

void LocalWorkers::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
    wake_.SignalAll();
  }
  if (loop_.joinable()) loop_.join();
}

void LocalWorkers::Spawn(size_t index) {
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const int count = std::max(1, options_.count);
  const int threads = options_.threads > 0 ? options_.threads : std::max(1, cores / count);
  const int64_t memory =
      options_.memory_limit > 0 ? options_.memory_limit : DefaultMemoryLimit() / count;
  std::vector<std::string> words = {
      options_.program, absl::StrCat("--coordinator=", options_.coordinator),
      absl::StrCat("--name=local-", index + 1), absl::StrCat("--threads=", threads),
      absl::StrCat("--memory-limit=", memory)};
  if (!options_.swap_dir.empty()) words.push_back("--swap-dir=" + options_.swap_dir);
  if (!options_.cache_dir.empty()) words.push_back("--cache-dir=" + options_.cache_dir);
  if (!options_.dataset_roots.empty()) {
    words.push_back("--dataset-root=" + absl::StrJoin(options_.dataset_roots, ","));
  }
  if (!options_.api_key_file.empty()) words.push_back("--api-key-file=" + options_.api_key_file);
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  Process& process = processes_[index];
  process.started = absl::Now();
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) {
    // Only async-signal-safe calls between fork and exec: this process has threads.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    sigset_t none;
    sigemptyset(&none);
    pthread_sigmask(SIG_SETMASK, &none, nullptr);
    dup2(2, 1);  // standard output belongs to the daemon
    CloseOnExecFrom(3);
    execv(argv[0], argv.data());
    _exit(127);
  }
  if (pid < 0) {
    spdlog::error("local worker {} was not started: {}", index + 1, std::strerror(errno));
    process.start_at = absl::Now() + kMaxBackoff;
    return;
  }
  process.pid = pid;
  spdlog::info("local worker {} started pid={} threads={}", index + 1, pid, threads);
}

// The thread that forks the processes must outlive them: PDEATHSIG is tied to the thread.
void LocalWorkers::Loop() {
  while (true) {
    for (size_t i = 0; i < processes_.size(); ++i) {
      Process& process = processes_[i];
      int status = 0;
      if (process.pid > 0 && waitpid(process.pid, &status, WNOHANG) == process.pid) {
        const bool healthy = absl::Now() - process.started > kHealthyUptime;
        process.backoff = healthy || process.backoff == absl::ZeroDuration()
                              ? kInitialBackoff
                              : std::min(process.backoff * 2, kMaxBackoff);
        process.start_at = absl::Now() + process.backoff;
        spdlog::warn("local worker {} pid={} ended with {}; starting it again in {}", i + 1,
                     process.pid, HowItEnded(status), absl::FormatDuration(process.backoff));
        process.pid = -1;
      }
      if (process.pid < 0 && absl::Now() >= process.start_at) Spawn(i);
    }
    absl::MutexLock lock(&mutex_);
    if (!stop_) wake_.WaitWithTimeout(&mutex_, kTick);
    if (stop_) break;
  }
  for (Process& process : processes_) {
    // Not SIGTERM, at which a worker would wait until jobs can do without it.
    if (process.pid > 0) kill(process.pid, SIGINT);
  }
  const absl::Time deadline = absl::Now() + kLeaveTime;
  for (Process& process : processes_) {
    while (process.pid > 0) {
      if (waitpid(process.pid, nullptr, WNOHANG) == process.pid) {
        process.pid = -1;
      } else if (absl::Now() > deadline) {
        kill(process.pid, SIGKILL);
        waitpid(process.pid, nullptr, 0);
        process.pid = -1;
      } else {
        absl::SleepFor(absl::Milliseconds(20));
      }
    }
  }
}

}  // namespace espalier
