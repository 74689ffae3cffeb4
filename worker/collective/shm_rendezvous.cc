#include "worker/collective/shm_rendezvous.h"

#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <list>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "worker/collective/descriptor.h"
#include "worker/collective/host_identity.h"

namespace espalier {
namespace {

constexpr size_t kSecretBytes = 16;
// Ranks greet at once; other processes of the host may see the name and connect, too. Beyond so
// many of them the oldest goes when more come.
constexpr absl::Duration kGreetingWait = absl::Seconds(5);
constexpr size_t kMostStrangers = 64;
// How long a full queue of a peer is waited for.
constexpr absl::Duration kConnectWait = absl::Seconds(5);

// Greeting of the connecting rank, sent with the memory's descriptor.
struct Greeting {
  char secret[kSecretBytes];
  int32_t rank;
};

absl::Status RendezvousError(const std::string& what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(errno)));
}

std::string RandomBytes(size_t count) {
  std::string bytes(count, '\0');
  if (getrandom(bytes.data(), count, 0) != static_cast<ssize_t>(count)) return "";
  return bytes;
}

sockaddr_un AddressOf(const std::string& name, socklen_t* length) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  // A leading zero byte makes the name abstract.
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  *length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

absl::StatusOr<Descriptor> Listen(const std::string& name) {
  Descriptor listener(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  socklen_t length = 0;
  const sockaddr_un address = AddressOf(name, &length);
  if (listener.get() < 0 ||
      bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      listen(listener.get(), SOMAXCONN) != 0) {
    return RendezvousError("cannot listen for ranks of this host");
  }
  return listener;
}

absl::Status SendGreeting(int socket, const Greeting& greeting, int memory) {
  iovec data{const_cast<Greeting*>(&greeting), sizeof(greeting)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &memory, sizeof(int));
  if (sendmsg(socket, &message, MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof(greeting))) {
    return RendezvousError("cannot greet a rank of this host");
  }
  return absl::OkStatus();
}

// Returns the memory's descriptor; a negative one if this is no valid greeting.
Descriptor ReceiveGreeting(int socket, Greeting* greeting) {
  iovec data{greeting, sizeof(*greeting)};
  // A stranger may send as many descriptors as fit, and all are this process's then.
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (got < 0) return Descriptor();
  std::vector<Descriptor> taken;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int descriptor = -1;
      std::memcpy(&descriptor, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      taken.emplace_back(descriptor);
    }
  }
  if (got != static_cast<ssize_t>(sizeof(*greeting)) || taken.size() != 1) return Descriptor();
  return std::move(taken[0]);
}

// Published by each rank: identity, socket name and secret; empty if it cannot share memory.
struct RankInfo {
  std::string identity, name, secret;
};

std::string Key(int rank) { return absl::StrCat("host/", rank); }
// Key of whether the higher rank connected to the lower one.
std::string ConnectedKey(int lower, int higher) {
  return absl::StrCat("host/", lower, "/", higher);
}

std::string Encode(const RankInfo& info) {
  return absl::StrCat(info.identity, " ", info.name, " ", absl::BytesToHexString(info.secret));
}

RankInfo Decode(const std::string& text) {
  const std::vector<std::string> words = absl::StrSplit(text, ' ');
  // The name must fit into a socket address.
  if (words.size() != 3 || words[1].size() > 64 || words[2].size() != 2 * kSecretBytes) return {};
  return {words[0], words[1], absl::HexStringToBytes(words[2])};
}

using Channels = std::vector<std::unique_ptr<ShmChannel>>;

absl::Status ConnectToPeer(int peer, const RankInfo& info, int rank, absl::Time deadline,
                           Channels* channels) {
  // Not blocking: connect() would wait as long as strangers fill the peer's queue.
  Descriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  socklen_t length = 0;
  const sockaddr_un address = AddressOf(info.name, &length);
  const absl::Time soon = std::min(deadline, absl::Now() + kConnectWait);
  while (connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    if (errno == EINTR || (errno == EAGAIN && absl::Now() < soon)) {
      absl::SleepFor(absl::Milliseconds(10));
      continue;
    }
    return RendezvousError(
        absl::StrCat("rank ", peer, ", which is on this host too, does not listen"));
  }
  absl::StatusOr<int> memory = ShmChannel::NewMemory();
  if (!memory.ok()) return memory.status();
  Descriptor file(*memory);
  Greeting greeting{};
  std::memcpy(greeting.secret, info.secret.data(), kSecretBytes);
  greeting.rank = rank;
  if (absl::Status s = SendGreeting(socket.get(), greeting, file.get()); !s.ok()) return s;
  auto channel = ShmChannel::Map(file.Release(), socket.Release(), 1);
  if (!channel.ok()) return channel.status();
  (*channels)[peer] = *std::move(channel);
  return absl::OkStatus();
}

// Accepts all higher ranks of the host, in order of arrival. Strangers hold up nobody.
class Reception {
 public:
  Reception(int listener, const RankInfo& mine, std::vector<int> awaited, Channels* channels)
      : listener_(listener), mine_(mine), awaited_(std::move(awaited)), channels_(*channels) {}

  absl::Status Run(absl::Time deadline) {
    while (!awaited_.empty()) {
      const absl::Time now = absl::Now();
      if (now >= deadline) {
        return absl::DeadlineExceededError(
            absl::StrCat("waiting for rank ", awaited_.front(), " of this host: timed out"));
      }
      waiting_.remove_if([&](const Waiting& one) { return one.deadline <= now; });
      std::vector<pollfd> polled = {{listener_, POLLIN, 0}};
      absl::Time next = deadline;
      for (const Waiting& one : waiting_) {
        polled.push_back({one.socket.get(), POLLIN, 0});
        next = std::min(next, one.deadline);
      }
      const int64_t left = absl::ToInt64Milliseconds(next - now) + 1;
      const int milliseconds = static_cast<int>(std::min<int64_t>(left, 1 << 30));
      if (poll(polled.data(), polled.size(), milliseconds) < 0 && errno != EINTR) {
        return RendezvousError("waiting for ranks of this host");
      }
      size_t at = 1;
      for (auto one = waiting_.begin(); one != waiting_.end();) {
        if (polled[at++].revents == 0) {
          ++one;
          continue;
        }
        if (absl::Status s = Greet(&one->socket); !s.ok()) return s;
        one = waiting_.erase(one);
      }
      if (polled[0].revents != 0) {
        if (absl::Status s = AcceptSome(); !s.ok()) return s;
      }
    }
    return absl::OkStatus();
  }

 private:
  struct Waiting {
    Descriptor socket;
    absl::Time deadline;
  };

  absl::Status AcceptSome() {
    while (true) {
      Descriptor socket(accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!socket.ok()) {
        if (errno == EINTR || errno == ECONNABORTED) continue;
        return errno == EAGAIN ? absl::OkStatus() : RendezvousError("accepting ranks of this host");
      }
      if (waiting_.size() >= kMostStrangers) waiting_.pop_front();
      waiting_.push_back({std::move(socket), absl::Now() + kGreetingWait});
      // A rank's greeting has usually arrived with it, and does not wait behind strangers.
      pollfd polled{waiting_.back().socket.get(), POLLIN, 0};
      if (poll(&polled, 1, 0) != 1) continue;
      absl::Status s = Greet(&waiting_.back().socket);
      waiting_.pop_back();
      if (!s.ok()) return s;
    }
  }

  // Makes the channel if the greeting is that of an awaited rank.
  absl::Status Greet(Descriptor* socket) {
    Greeting greeting{};
    Descriptor memory = ReceiveGreeting(socket->get(), &greeting);
    const auto who = std::find(awaited_.begin(), awaited_.end(), greeting.rank);
    if (!memory.ok() || who == awaited_.end() ||
        std::memcmp(greeting.secret, mine_.secret.data(), kSecretBytes) != 0) {
      return absl::OkStatus();
    }
    auto channel = ShmChannel::Map(memory.Release(), socket->Release(), 0);
    if (!channel.ok()) return channel.status();
    channels_[static_cast<size_t>(*who)] = *std::move(channel);
    awaited_.erase(who);
    return absl::OkStatus();
  }

  const int listener_;
  const RankInfo& mine_;
  std::vector<int> awaited_;
  Channels& channels_;
  std::list<Waiting> waiting_;  // that have not greeted; the oldest first
};

}  // namespace

absl::StatusOr<Channels> ConnectShmChannels(int rank, int size, RendezvousStore& store,
                                            absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  RankInfo mine{HostIdentity(), "espalier-" + absl::BytesToHexString(RandomBytes(8)),
                RandomBytes(kSecretBytes)};
  absl::StatusOr<Descriptor> listener = Listen(mine.name);
  // If the host forbids this, its ranks communicate over the network.
  const bool can = !mine.identity.empty() && mine.secret.size() == kSecretBytes && listener.ok();
  if (absl::Status s = store.Set(Key(rank), can ? Encode(mine) : ""); !s.ok()) return s;
  Channels channels(static_cast<size_t>(size));
  if (!can) return channels;
  std::vector<int> higher;
  for (int peer = 0; peer < size; ++peer) {
    if (peer == rank) continue;
    absl::StatusOr<std::string> said = store.Get(Key(peer), deadline - absl::Now());
    if (!said.ok()) return said.status();
    const RankInfo info = Decode(*said);
    if (info.identity != mine.identity) continue;
    if (peer > rank) {
      higher.push_back(peer);
      continue;
    }
    // Cloned virtual machines have equal identities but cannot reach each other.
    const bool met = ConnectToPeer(peer, info, rank, deadline, &channels).ok();
    if (absl::Status s = store.Set(ConnectedKey(peer, rank), met ? "yes" : ""); !s.ok()) return s;
  }
  std::vector<int> awaited;
  for (int peer : higher) {
    absl::StatusOr<std::string> said = store.Get(ConnectedKey(rank, peer), deadline - absl::Now());
    if (!said.ok()) return said.status();
    if (*said == "yes") awaited.push_back(peer);
  }
  absl::Status met = Reception(listener->get(), mine, std::move(awaited), &channels).Run(deadline);
  if (!met.ok()) return met;
  return channels;
}

}  // namespace espalier
