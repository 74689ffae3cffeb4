#include "client/cli/daemon.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/child_descriptors.h"

namespace espalier {
namespace {

namespace fs = std::filesystem;

void Pause() { std::this_thread::sleep_for(std::chrono::milliseconds(50)); }

std::string Slurp(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

// A zombie counts as gone: its parent has only not reaped it yet.
bool Alive(int pid) {
  if (kill(pid, 0) != 0) return false;
  const std::string stat = Slurp(absl::StrCat("/proc/", pid, "/stat"));
  const size_t past_name = stat.rfind(')');
  return past_name == std::string::npos || stat.size() < past_name + 3 ||
         stat[past_name + 2] != 'Z';
}

}  // namespace

std::string LastLines(const std::string& path, size_t count) {
  constexpr std::streamoff kMost = 64 << 10;
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  const std::streamoff size = in ? static_cast<std::streamoff>(in.tellg()) : 0;
  in.seekg(std::max<std::streamoff>(0, size - kMost));
  std::ostringstream text;
  text << in.rdbuf();
  std::vector<std::string> lines = absl::StrSplit(text.str(), '\n', absl::SkipEmpty());
  if (lines.size() > count) lines.erase(lines.begin(), lines.end() - static_cast<long>(count));
  return absl::StrJoin(lines, "\n  ");
}

std::string PidFile(const std::string& home) { return home + "/espalierd.pid"; }
std::string LogFile(const std::string& home) { return home + "/espalierd.log"; }
std::string ReadyFile(const std::string& home) { return home + "/espalierd.ready"; }
std::string ConnectionFile(const std::string& home) { return home + "/connection.json"; }

Addresses ReadAddresses(const std::string& home) {
  Addresses addresses;
  auto json = nlohmann::json::parse(Slurp(ReadyFile(home)), nullptr, false);
  if (!json.is_object()) json = nlohmann::json::parse(Slurp(ConnectionFile(home)), nullptr, false);
  if (!json.is_object()) return addresses;
  const auto read = [&](const char* field, std::string* out) {
    auto it = json.find(field);
    if (it != json.end() && it->is_string() && !it->get<std::string>().empty())
      *out = it->get<std::string>();
  };
  read("grpc", &addresses.grpc);
  read("http", &addresses.http);
  read("ca_file", &addresses.ca_file);
  read("token_file", &addresses.token_file);
  return addresses;
}

int RunningDaemon(const std::string& home) {
  std::ifstream in(PidFile(home));
  int pid = 0;
  if (!(in >> pid) || pid <= 1 || !Alive(pid)) return 0;
  // The pid may have been reused: check that the process's command line names this ready file,
  // which `up` passes.
  std::error_code error;
  const fs::path ready = fs::weakly_canonical(ReadyFile(home), error);
  const std::string words = Slurp(absl::StrCat("/proc/", pid, "/cmdline"));
  for (absl::string_view word : absl::StrSplit(words, '\0')) {
    if (absl::ConsumePrefix(&word, "--ready-file=") &&
        fs::weakly_canonical(std::string(word), error) == ready) {
      return pid;
    }
  }
  return 0;
}

absl::StatusOr<std::string> FindProgram(const std::string& program, const std::string& package,
                                        const std::string& name) {
  const fs::path folder = fs::path(program).parent_path();
  const std::vector<fs::path> places = {folder / name, folder / ".." / package / name,
                                        folder / ".." / "bin" / name};
  std::vector<std::string> tried;
  for (const fs::path& place : places) {
    const std::string path = place.lexically_normal().string();
    if (access(path.c_str(), X_OK) == 0) return path;
    tried.push_back(path);
  }
  return absl::NotFoundError(
      absl::StrCat(name, " is not there; looked for ", absl::StrJoin(tried, ", "),
                   ". Build it: bazel build --config=release //", package, ":", name));
}

absl::StatusOr<int> StartDaemon(const std::vector<std::string>& command, const std::string& home,
                                double timeout_seconds) {
  std::remove(ReadyFile(home).c_str());
  const int log = open(LogFile(home).c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (log < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", LogFile(home)));
  std::vector<char*> argv;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  const pid_t pid = fork();
  if (pid < 0) {
    const int number = errno;
    close(log);
    return absl::ErrnoToStatus(number, "cannot start a process");
  }
  if (pid == 0) {
    // A session of its own, unaffected by this terminal's Ctrl-C and hang-up.
    setsid();
    const int null = open("/dev/null", O_RDONLY);
    dup2(null, 0);
    dup2(log, 1);
    dup2(log, 2);
    CloseOnExecFrom(3);
    execv(argv[0], argv.data());
    _exit(127);
  }
  close(log);
  {
    std::ofstream out(PidFile(home), std::ios::trunc);
    out << pid << "\n";
  }
  const auto start = std::chrono::steady_clock::now();
  while (access(ReadyFile(home).c_str(), R_OK) != 0) {
    int status = 0;
    if (waitpid(pid, &status, WNOHANG) == pid) {
      std::remove(PidFile(home).c_str());
      return absl::InternalError(absl::StrCat("espalierd ended at once. The end of ", LogFile(home),
                                              ":\n  ", LastLines(LogFile(home), 8)));
    }
    const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - start;
    if (waited.count() > timeout_seconds) {
      return absl::DeadlineExceededError(absl::StrCat(
          "espalierd (process ", pid, ") is not ready after ", timeout_seconds,
          " s; it is still starting. Watch ", LogFile(home), " or stop it: espalier down"));
    }
    Pause();
  }
  return pid;
}

double DrainSeconds(const std::string& home) {
  constexpr double kLongest = 1e9;
  double seconds = 30;  // espalierd's default
  const auto ready = nlohmann::json::parse(Slurp(ReadyFile(home)), nullptr, false);
  if (ready.is_object() && ready.contains("drain_seconds") && ready["drain_seconds"].is_number()) {
    return std::min(ready["drain_seconds"].get<double>(), kLongest);
  }
  // No ready file: still starting.
  const int pid = RunningDaemon(home);
  const std::string words = Slurp(absl::StrCat("/proc/", pid, "/cmdline"));
  // Accepts espalierd's two spellings, with one dash or two; `up` always passes "=". The last one
  // counts.
  for (const absl::string_view word : absl::StrSplit(words, '\0')) {
    const std::pair<absl::string_view, absl::string_view> flag =
        absl::StrSplit(word, absl::MaxSplits('=', 1));
    const std::string name = absl::StrReplaceAll(flag.first, {{"-", "_"}});
    if (name != "__drain_seconds" && name != "_drain_seconds") continue;
    if (double given = 0; absl::SimpleAtod(flag.second, &given)) seconds = given;
  }
  return std::min(seconds, kLongest);
}

absl::Status StopDaemon(const std::string& home, double timeout_seconds,
                        const std::function<void(double seconds)>& waiting, bool* killed) {
  *killed = false;
  const int pid = RunningDaemon(home);
  if (pid != 0) {
    kill(pid, SIGTERM);
    const auto start = std::chrono::steady_clock::now();
    while (Alive(pid)) {
      const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - start;
      if (waited.count() > timeout_seconds && !*killed) {
        kill(pid, SIGKILL);
        *killed = true;
      } else if (waited.count() > timeout_seconds + 10) {
        return absl::InternalError(absl::StrCat("process ", pid, " does not end"));
      }
      waiting(waited.count());
      Pause();
    }
    waitpid(pid, nullptr, WNOHANG);
  }
  std::remove(PidFile(home).c_str());
  std::remove(ReadyFile(home).c_str());
  return pid != 0 ? absl::OkStatus()
                  : absl::NotFoundError(
                        absl::StrCat("no espalierd is running from ", home,
                                     "; another one's state: --home=DIR or ESPALIER_HOME"));
}

}  // namespace espalier
