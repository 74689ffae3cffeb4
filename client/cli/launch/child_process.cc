#include "client/cli/launch/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/child_descriptors.h"

namespace espalier {
namespace {

std::string ReadAll(int descriptor) {
  std::string text;
  char piece[1 << 14];
  for (ssize_t n; descriptor >= 0 && (n = pread(descriptor, piece, sizeof(piece),
                                                static_cast<off_t>(text.size()))) > 0;) {
    text.append(piece, static_cast<size_t>(n));
  }
  return text;
}

absl::Status WriteAll(int descriptor, const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t n = write(descriptor, text.data() + done, text.size() - done);
    if (n < 0) return absl::ErrnoToStatus(errno, "cannot keep a command's input in memory");
    done += static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

std::vector<char*> Pointers(const std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (const std::string& word : words) pointers.push_back(const_cast<char*>(word.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

std::vector<std::string> Environment(const std::map<std::string, std::string>& added) {
  std::vector<std::string> words;
  for (char** word = environ; *word != nullptr; ++word) {
    const std::string name(*word, strcspn(*word, "="));
    if (added.count(name) == 0) words.emplace_back(*word);
  }
  for (const auto& [name, value] : added) words.push_back(absl::StrCat(name, "=", value));
  return words;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChildProcess>> ChildProcess::Start(const ChildOptions& options) {
  const auto cannot = [&](const std::string& what) {
    return absl::UnavailableError(
        absl::StrCat("cannot start ", options.command[0], ": ", what, ": ", std::strerror(errno)));
  };
  std::unique_ptr<ChildProcess> child(new ChildProcess);
  int input = -1, file = -1;
  const absl::Cleanup close_them = [&] {
    if (input >= 0) close(input);
    if (file >= 0) close(file);
  };
  if (!options.input_file.empty()) {
    input = open(options.input_file.c_str(), O_RDONLY | O_CLOEXEC);
    if (input < 0) return cannot(options.input_file);
  } else {
    input = memfd_create("input", MFD_CLOEXEC);
    if (input < 0) return cannot("its input");
    if (absl::Status s = WriteAll(input, options.input); !s.ok()) return s;
    lseek(input, 0, SEEK_SET);
  }
  if (options.keep_output) {
    child->output_ = memfd_create("output", MFD_CLOEXEC);
    if (child->output_ < 0) return cannot("its output");
  } else if (!options.output_file.empty()) {
    file = open(options.output_file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (file < 0) return cannot(options.output_file);
  }
  if (options.keep_output || options.keep_errors) {
    child->errors_ = memfd_create("errors", MFD_CLOEXEC);
    if (child->errors_ < 0) return cannot("its errors");
  }
  const int out = child->output_ >= 0 ? child->output_ : file;
  const int err = child->errors_ >= 0 ? child->errors_ : file;

  const std::vector<std::string> environment = Environment(options.environment);
  const std::vector<char*> argv = Pointers(options.command), envp = Pointers(environment);
  // It tells by which error exec failed, and closes if exec succeeds.
  int failure[2];
  if (pipe2(failure, O_CLOEXEC) != 0) return cannot("pipe");
  const absl::Cleanup close_failure = [&] { close(failure[0]); };
  // Ignored, as some parents leave it, it would hide how children end.
  struct sigaction on_child {};
  if (sigaction(SIGCHLD, nullptr, &on_child) == 0 && on_child.sa_handler == SIG_IGN) {
    signal(SIGCHLD, SIG_DFL);
  }
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid != 0) close(failure[1]);
  if (pid < 0) return cannot("fork");
  if (pid == 0) {
    // Only system calls until exec: other threads may hold locks.
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(127);
    if (options.own_group) setpgid(0, 0);
    dup2(input, 0);
    if (out >= 0) dup2(out, 1);
    if (err >= 0) dup2(err, 2);
    CloseOnExecFrom(3);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    signal(SIGPIPE, SIG_DFL);
    execvpe(argv[0], argv.data(), envp.data());
    const int error = errno;
    _exit(write(failure[1], &error, sizeof(error)) == sizeof(error) ? 127 : 126);
  }
  child->pid_ = pid;
  int error = 0;
  ssize_t told = 0;
  while ((told = read(failure[0], &error, sizeof(error))) < 0 && errno == EINTR) {
  }
  if (told != sizeof(error)) return child;
  errno = error;
  if (error != ENOENT) return cannot("exec");
  return absl::NotFoundError(absl::StrCat("there is no program ", options.command[0]));
}

absl::StatusOr<std::unique_ptr<ChildProcess>> ChildProcess::Run(const ChildOptions& options) {
  auto child = Start(options);
  while (child.ok() && !(*child)->Ended()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return child;
}

ChildProcess::~ChildProcess() {
  if (!Ended()) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  if (output_ >= 0) close(output_);
  if (errors_ >= 0) close(errors_);
}

bool ChildProcess::Ended() {
  if (ended_ || pid_ == 0) return true;
  int status = 0;
  const pid_t waited = waitpid(pid_, &status, WNOHANG);
  if (waited == 0 || (waited < 0 && errno != ECHILD)) return false;
  ended_ = true;
  exit_code_ = waited < 0 ? 1 : WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return true;
}

void ChildProcess::Signal(int signal) {
  if (!Ended()) kill(pid_, signal);
}

void ChildProcess::Stop(double seconds) {
  Signal(SIGTERM);
  const auto begin = std::chrono::steady_clock::now();
  while (!Ended()) {
    const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - begin;
    if (waited.count() > seconds) Signal(SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

std::string ChildProcess::output() const { return ReadAll(output_); }
std::string ChildProcess::errors() const { return ReadAll(errors_); }

}  // namespace espalier
