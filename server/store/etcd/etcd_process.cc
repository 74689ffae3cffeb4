#include "server/store/etcd/etcd_process.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace espalier {
namespace {

constexpr char kProgram[] = "/usr/bin/etcd";

// Below the ports that the system gives to those who connect: a client that tries to connect to
// one of them before etcd listens may otherwise be given it, and be connected with itself.
int FreePort() {
  constexpr int kFirst = 20'000, kCount = 12'000;
  std::random_device random;
  for (int tries = 0; tries < 1000; ++tries) {
    const int port = kFirst + static_cast<int>(random() % kCount);
    const int listener = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(port));
    const bool free = bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
    close(listener);
    if (free) return port;
  }
  ADD_FAILURE() << "no port is free";
  return 0;
}

std::string Tail(const std::string& path) {
  std::ifstream file(path);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  return text.substr(text.size() - std::min<size_t>(text.size(), 3000));
}

}  // namespace

bool EtcdProcess::IsInstalled() { return access(kProgram, X_OK) == 0; }

EtcdProcess::EtcdProcess(const std::string& folder)
    : endpoint_(absl::StrCat("127.0.0.1:", FreePort())) {
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  std::filesystem::permissions(folder, std::filesystem::perms::owner_all);
  const std::string peers = absl::StrCat("http://127.0.0.1:", FreePort());
  const std::string clients = absl::StrCat("http://", endpoint_);
  std::vector<std::string> arguments = {
      kProgram, "--name=test", absl::StrCat("--data-dir=", folder),
      absl::StrCat("--listen-client-urls=", clients),
      absl::StrCat("--advertise-client-urls=", clients), absl::StrCat("--listen-peer-urls=", peers),
      absl::StrCat("--initial-advertise-peer-urls=", peers),
      absl::StrCat("--initial-cluster=test=", peers), "--log-level=error",
      // Otherwise a lease of less than two seconds is made longer.
      "--heartbeat-interval=20", "--election-timeout=200"};
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  const std::string log = absl::StrCat(folder, ".log");
  pid_ = fork();
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int file = open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    dup2(file, STDOUT_FILENO);
    dup2(file, STDERR_FILENO);
    execv(kProgram, argv.data());
    _exit(127);
  }
  const std::unique_ptr<EtcdClient> client = Client();
  etcdserverpb::RangeRequest request;
  request.set_key("x");
  absl::Status status;
  for (const absl::Time end = absl::Now() + absl::Seconds(30);
       absl::Now() < end && waitpid(pid_, nullptr, WNOHANG) == 0;) {
    status = client->Range(request).status();
    if (status.ok()) return;
    absl::SleepFor(absl::Milliseconds(50));
  }
  ADD_FAILURE() << "etcd does not answer: " << status << "; its log: " << Tail(log);
}

EtcdProcess::~EtcdProcess() {
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

std::unique_ptr<EtcdClient> EtcdProcess::Client() const {
  EtcdClientOptions options;
  options.endpoints = {endpoint_};
  return std::make_unique<EtcdClient>(std::move(options));
}

void EtcdProcess::Pause() { kill(pid_, SIGSTOP); }
void EtcdProcess::Continue() { kill(pid_, SIGCONT); }

LeaderGuard LeadForever(EtcdApi* etcd, const std::string& prefix) {
  const std::string folder = EtcdKeys(prefix).Leaders();
  etcdserverpb::TxnRequest request;
  auto* others = request.add_success()->mutable_request_delete_range();
  others->set_key(folder);
  others->set_range_end(EndOfPrefix(folder));
  EXPECT_EQ(etcd->Txn(request).status(), absl::OkStatus());
  request.Clear();
  LeaderGuard guard;
  guard.key = folder + "test";
  auto* put = request.add_success()->mutable_request_put();
  put->set_key(guard.key);
  put->set_value("a test");
  const auto reply = etcd->Txn(request);
  EXPECT_EQ(reply.status(), absl::OkStatus());
  guard.epoch = reply.ok() ? reply->header().revision() : 0;
  guard.left = [] { return absl::Seconds(5); };
  return guard;
}

}  // namespace espalier
