#include "worker/collective/peer_monitor.h"

#include <netdb.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/random_id.h"
#include "worker/collective/host_identity.h"

namespace espalier {
namespace {

constexpr size_t kSecretDigits = 32;  // of RandomId
constexpr absl::Duration kGreetingWait = absl::Seconds(2);
constexpr int kBeatsInSilence = 20;
constexpr char kPeerPayload[] = "espalier.unreachable_rank";  // in decimal digits

// What the connecting rank sends first.
struct MonitorGreeting {
  char secret[kSecretDigits];
  int32_t rank;  // in network byte order
};

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

absl::StatusOr<Addresses> Resolve(const std::string& host, const std::string& port, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
  if (error != 0) {
    return absl::UnavailableError(absl::StrCat("host '", host, "': ", gai_strerror(error)));
  }
  return Addresses(found, &freeaddrinfo);
}

absl::StatusOr<Descriptor> ListenOn(const std::string& host, std::string* port) {
  absl::StatusOr<Addresses> addresses = Resolve(host, "0", AI_PASSIVE);
  if (!addresses.ok()) return addresses.status();
  const addrinfo& address = **addresses;
  Descriptor listener(socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_storage bound{};
  socklen_t length = sizeof(bound);
  char digits[NI_MAXSERV] = {};
  if (!listener.ok() || bind(listener.get(), address.ai_addr, address.ai_addrlen) != 0 ||
      listen(listener.get(), SOMAXCONN) != 0 ||
      getsockname(listener.get(), reinterpret_cast<sockaddr*>(&bound), &length) != 0 ||
      getnameinfo(reinterpret_cast<const sockaddr*>(&bound), length, nullptr, 0, digits,
                  sizeof(digits), NI_NUMERICSERV) != 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", host, " for other ranks: ", std::strerror(errno)));
  }
  *port = digits;
  return listener;
}

// Returns false after the deadline.
bool WaitFor(int fd, short events, absl::Time deadline) {
  while (true) {
    pollfd waited{fd, events, 0};
    const int64_t left = absl::ToInt64Milliseconds(deadline - absl::Now());
    const int ready = poll(&waited, 1, static_cast<int>(std::clamp<int64_t>(left, 0, 1 << 30)));
    if (ready > 0) return true;
    if (ready == 0 || errno != EINTR) return false;
  }
}

absl::Duration SinceStart() {
  return absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

absl::Status OfPeer(int rank, absl::Status status) {
  status.SetPayload(kPeerPayload, absl::Cord(absl::StrCat(rank)));
  return status;
}

}  // namespace

std::optional<int> UnreachableRank(const absl::Status& status) {
  int rank = 0;
  const auto payload = status.GetPayload(kPeerPayload);
  if (!payload.has_value() || !absl::SimpleAtoi(std::string(*payload), &rank)) return std::nullopt;
  return rank;
}

std::string PeerMonitor::Name(int rank, const std::string& host) const {
  return absl::StrCat("rank ", rank, " (", host, ")");
}

absl::StatusOr<std::unique_ptr<PeerMonitor>> PeerMonitor::Connect(const PeerMonitorOptions& options,
                                                                  RendezvousStore& store) {
  const absl::Time deadline = absl::Now() + options.connect_timeout;
  const auto key = [](int rank) { return absl::StrCat("monitor/", rank); };
  std::unique_ptr<PeerMonitor> monitor(new PeerMonitor(options));
  const std::string identity = HostIdentity();
  absl::StatusOr<std::string> secret = RandomId();
  if (!secret.ok()) return secret.status();
  std::string port;
  absl::StatusOr<Descriptor> listener = ListenOn(options.host, &port);
  if (!listener.ok()) return listener.status();
  absl::Status set = store.Set(
      key(options.rank),
      absl::StrCat(identity.empty() ? "?" : identity, " ", options.host, " ", port, " ", *secret));
  if (!set.ok()) return set;
  std::map<int, std::string> higher;
  for (int peer = 0; peer < options.size; ++peer) {
    if (peer == options.rank) continue;
    absl::StatusOr<std::string> published = store.Get(key(peer), deadline - absl::Now());
    if (!published.ok()) return published.status();
    const std::vector<std::string> words = absl::StrSplit(*published, ' ');
    if (words.size() != 4 || words[3].size() != kSecretDigits) {
      return absl::InternalError(absl::StrCat("rank ", peer, " published no address"));
    }
    if (!options.same_host && words[0] == identity) continue;
    if (peer > options.rank) {
      higher.emplace(peer, words[1]);
    } else if (absl::Status s = monitor->ConnectTo(peer, *published, deadline); !s.ok()) {
      return s;
    }
  }
  if (absl::Status s = monitor->AcceptAll(listener->get(), *secret, higher, deadline); !s.ok()) {
    return s;
  }
  if (monitor->peers_.empty()) return nullptr;
  return monitor;
}

absl::Status PeerMonitor::ConnectTo(int peer, const std::string& published, absl::Time deadline) {
  const std::vector<std::string> words = absl::StrSplit(published, ' ');
  const std::string pair =
      absl::StrCat(Name(options_.rank, options_.host), " cannot connect to ", Name(peer, words[1]));
  absl::StatusOr<Addresses> addresses = Resolve(words[1], words[2], AI_NUMERICSERV);
  if (!addresses.ok())
    return OfPeer(peer,
                  absl::UnavailableError(absl::StrCat(pair, ": ", addresses.status().message())));
  int error = 0;
  for (const addrinfo* a = addresses->get(); a != nullptr; a = a->ai_next) {
    Descriptor connecting(socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    error = 0;
    if (!connecting.ok() || connect(connecting.get(), a->ai_addr, a->ai_addrlen) != 0)
      error = errno;
    if (error == EINPROGRESS) {
      socklen_t length = sizeof(error);
      if (!WaitFor(connecting.get(), POLLOUT, deadline)) {
        error = ETIMEDOUT;
      } else if (getsockopt(connecting.get(), SOL_SOCKET, SO_ERROR, &error, &length) != 0) {
        error = errno;
      }
    }
    if (error != 0) continue;
    MonitorGreeting greeting{};
    std::memcpy(greeting.secret, words[3].data(), kSecretDigits);
    greeting.rank = static_cast<int32_t>(htonl(static_cast<uint32_t>(options_.rank)));
    if (send(connecting.get(), &greeting, sizeof(greeting), MSG_NOSIGNAL) !=
        static_cast<ssize_t>(sizeof(greeting))) {
      error = errno;
      continue;
    }
    peers_[peer] = {words[1], std::move(connecting), absl::ZeroDuration()};
    return absl::OkStatus();
  }
  const std::string message =
      absl::StrCat(pair, ": ", std::strerror(error),
                   "; does a firewall or a route between these hosts let neither or only one "
                   "direction pass?");
  return OfPeer(peer, error == ETIMEDOUT ? absl::DeadlineExceededError(message)
                                         : absl::UnavailableError(message));
}

absl::Status PeerMonitor::AcceptAll(int listener, const std::string& secret,
                                    std::map<int, std::string> awaited, absl::Time deadline) {
  while (!awaited.empty()) {
    if (!WaitFor(listener, POLLIN, deadline)) {
      const auto& [peer, host] = *awaited.begin();
      return OfPeer(
          peer, absl::DeadlineExceededError(absl::StrCat(
                    Name(peer, host), " has not connected to ", Name(options_.rank, options_.host),
                    " within ", absl::FormatDuration(options_.connect_timeout),
                    "; does a firewall or a route between these hosts let neither or only one "
                    "direction pass?")));
    }
    Descriptor accepted(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!accepted.ok()) continue;
    // Ranks greet at once; others may have found the port.
    const absl::Time soon = std::min(deadline, absl::Now() + kGreetingWait);
    MonitorGreeting greeting{};
    if (!WaitFor(accepted.get(), POLLIN, soon) ||
        recv(accepted.get(), &greeting, sizeof(greeting), 0) !=
            static_cast<ssize_t>(sizeof(greeting)) ||
        std::memcmp(greeting.secret, secret.data(), kSecretDigits) != 0) {
      continue;
    }
    const auto who = awaited.find(static_cast<int>(ntohl(static_cast<uint32_t>(greeting.rank))));
    if (who == awaited.end()) continue;
    peers_[who->first] = {who->second, std::move(accepted), absl::ZeroDuration()};
    awaited.erase(who);
  }
  return absl::OkStatus();
}

void PeerMonitor::Watch(OnSilence on_silence) {
  stop_ = Descriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  thread_ = std::thread([this, call = std::move(on_silence)] { Loop(call); });
}

PeerMonitor::~PeerMonitor() {
  if (!thread_.joinable()) return;
  eventfd_write(stop_.get(), 1);
  thread_.join();
}

absl::Status PeerMonitor::Read(int rank, Peer* peer, absl::Duration now) {
  char bytes[256];
  while (true) {
    const ssize_t got = recv(peer->socket.get(), bytes, sizeof(bytes), 0);
    if (got > 0) {
      peer->heard = now;
    } else if (got < 0 && errno == EINTR) {
      continue;
    } else if (got < 0 && errno == EAGAIN) {
      return absl::OkStatus();
    } else if (got == 0 || errno == ECONNRESET || errno == EPIPE) {
      peer->socket = Descriptor();  // it has ended
      return absl::OkStatus();
    } else {
      return absl::UnavailableError(
          absl::StrCat(Name(options_.rank, options_.host), " has lost its connection to ",
                       Name(rank, peer->host), ": ", std::strerror(errno)));
    }
  }
}

void PeerMonitor::Loop(const OnSilence& on_silence) {
  const absl::Duration interval = options_.silence / kBeatsInSilence;
  const absl::Duration begin = SinceStart();
  absl::Duration last_loop, next_beat;
  while (true) {
    std::vector<pollfd> waited = {{stop_.get(), POLLIN, 0}};
    for (const auto& [rank, peer] : peers_) {
      if (peer.socket.ok()) waited.push_back({peer.socket.get(), POLLIN, 0});
    }
    if (waited.size() == 1) return;
    const int64_t left = absl::ToInt64Milliseconds(next_beat - (SinceStart() - begin));
    poll(waited.data(), waited.size(), static_cast<int>(std::max<int64_t>(left, 0) + 1));
    if (waited[0].revents != 0) return;
    const absl::Duration now = SinceStart() - begin;
    // This process, or the whole machine, was stopped: what peers have sent since is still coming.
    const bool resumed = now - last_loop > 3 * interval;
    last_loop = now;
    const bool beat = now >= next_beat;
    if (beat) next_beat = now + interval;
    for (auto& [rank, peer] : peers_) {
      if (!peer.socket.ok()) continue;
      if (resumed) peer.heard = now;
      absl::Status read = Read(rank, &peer, now);
      if (read.ok() && now - peer.heard > options_.silence) {
        read = absl::UnavailableError(absl::StrCat(
            "nothing has arrived from ", Name(rank, peer.host), " at ",
            Name(options_.rank, options_.host), " for ", absl::FormatDuration(options_.silence),
            ": that rank stands still, or a firewall, a route or a cable fails in this "
            "direction"));
      }
      if (!read.ok()) {
        on_silence(OfPeer(rank, std::move(read)));
        return;
      }
      // A full buffer means that nothing was acknowledged for long, which its own silence shows.
      if (beat && peer.socket.ok()) send(peer.socket.get(), "", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
  }
}

}  // namespace espalier
