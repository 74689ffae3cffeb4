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
#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "worker/collective/descriptor.h"
#include "worker/collective/host_identity.h"

namespace espalier {
namespace {

constexpr size_t kSecretBytes = 16;

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

absl::StatusOr<Descriptor> Listen(const std::string& name, int most) {
  Descriptor listener(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  socklen_t length = 0;
  const sockaddr_un address = AddressOf(name, &length);
  if (listener.get() < 0 ||
      bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      listen(listener.get(), most) != 0) {
    return RendezvousError("cannot listen for ranks of this host");
  }
  return listener;
}

absl::Status WaitToRead(int fd, absl::Time deadline, const char* what) {
  while (true) {
    pollfd poll_fd{fd, POLLIN, 0};
    const int64_t left = absl::ToInt64Milliseconds(deadline - absl::Now());
    const int ready = poll(&poll_fd, 1, static_cast<int>(std::clamp<int64_t>(left, 0, 1 << 30)));
    if (ready > 0) return absl::OkStatus();
    if (ready == 0) return absl::DeadlineExceededError(absl::StrCat(what, ": timed out"));
    if (errno != EINTR) return RendezvousError(what);
  }
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

// Returns the memory's descriptor; a negative one if there is no valid greeting.
Descriptor ReceiveGreeting(int socket, Greeting* greeting) {
  iovec data{greeting, sizeof(*greeting)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (got < 0 || header == nullptr || header->cmsg_type != SCM_RIGHTS ||
      header->cmsg_len != CMSG_LEN(sizeof(int))) {
    return Descriptor();
  }
  int memory = -1;
  std::memcpy(&memory, CMSG_DATA(header), sizeof(int));
  Descriptor taken(memory);
  return got == static_cast<ssize_t>(sizeof(*greeting)) ? std::move(taken) : Descriptor();
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

absl::Status ConnectToPeer(int peer, const RankInfo& info, int rank, Channels* channels) {
  Descriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  socklen_t length = 0;
  const sockaddr_un address = AddressOf(info.name, &length);
  if (socket.get() < 0 ||
      connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
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

// Accepts all higher ranks of the host, in order of arrival.
absl::Status AcceptPeers(int listener, const RankInfo& mine, std::vector<int> awaited,
                         absl::Time deadline, Channels* channels) {
  while (!awaited.empty()) {
    const std::string what = absl::StrCat("waiting for rank ", awaited.front(), " of this host");
    if (absl::Status s = WaitToRead(listener, deadline, what.c_str()); !s.ok()) return s;
    Descriptor socket(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    if (socket.get() < 0) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      return RendezvousError("accepting ranks of this host");
    }
    // Peers greet at once; other processes of the host may see the name and connect without a
    // greeting.
    const absl::Time soon = std::min(deadline, absl::Now() + absl::Seconds(5));
    if (!WaitToRead(socket.get(), soon, "a greeting").ok()) continue;
    Greeting greeting{};
    Descriptor memory = ReceiveGreeting(socket.get(), &greeting);
    const auto who = std::find(awaited.begin(), awaited.end(), greeting.rank);
    if (memory.get() < 0 || who == awaited.end() ||
        std::memcmp(greeting.secret, mine.secret.data(), kSecretBytes) != 0) {
      continue;
    }
    auto channel = ShmChannel::Map(memory.Release(), socket.Release(), 0);
    if (!channel.ok()) return channel.status();
    (*channels)[*who] = *std::move(channel);
    awaited.erase(who);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Channels> ConnectShmChannels(int rank, int size, RendezvousStore& store,
                                            absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  RankInfo mine{HostIdentity(), "espalier-" + absl::BytesToHexString(RandomBytes(8)),
                RandomBytes(kSecretBytes)};
  absl::StatusOr<Descriptor> listener = Listen(mine.name, size);
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
    const bool met = ConnectToPeer(peer, info, rank, &channels).ok();
    if (absl::Status s = store.Set(ConnectedKey(peer, rank), met ? "yes" : ""); !s.ok()) return s;
  }
  std::vector<int> awaited;
  for (int peer : higher) {
    absl::StatusOr<std::string> said = store.Get(ConnectedKey(rank, peer), deadline - absl::Now());
    if (!said.ok()) return said.status();
    if (*said == "yes") awaited.push_back(peer);
  }
  if (absl::Status s = AcceptPeers(listener->get(), mine, awaited, deadline, &channels); !s.ok())
    return s;
  return channels;
}

}  // namespace espalier
