#include "worker/collective/peer_links.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/crypto.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <list>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/random_id.h"
#include "worker/collective/host_identity.h"
#include "worker/collective/resolve_hosts.h"
#include "worker/collective/tls_stream.h"
#include "worker/collective/unreachable_rank.h"

namespace espalier {
namespace {

constexpr size_t kSecretDigits = 32;       // of RandomId
constexpr size_t kFingerprintDigits = 64;  // of SHA-256
// Ranks prove who they are at once; others may have found the port. Beyond these and the ranks
// themselves the oldest goes when more come.
constexpr absl::Duration kGreetingWait = absl::Seconds(10);
constexpr size_t kMostStrangers = 64;
constexpr absl::Duration kRetryWait = absl::Milliseconds(100);
// How long one address of a name is tried while there are others: a route for IPv6 may be dead.
constexpr absl::Duration kAddressWait = absl::Seconds(2);
constexpr absl::Duration kLongestPoll = absl::Seconds(1);
constexpr char kWelcome = 'w';
constexpr char kRoute[] =
    "; does a firewall or a route between these hosts let neither or only one direction pass?";

// What the connecting rank sends first; kWelcome is the answer.
struct Greeting {
  char secret[kSecretDigits];
  uint32_t rank;  // in network byte order
};

// Returns false, with errno, if that is not possible.
bool Bind(const sockaddr* address, socklen_t length, Descriptor* listener) {
  *listener = Descriptor(socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int off = 0;
  if (address->sa_family == AF_INET6) {
    setsockopt(listener->get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  }
  return listener->ok() && bind(listener->get(), address, length) == 0;
}

// At all interfaces, of IPv6 and IPv4 if the machine has both.
bool BindAll(Descriptor* listener) {
  sockaddr_in6 all6{};
  all6.sin6_family = AF_INET6;
  sockaddr_in all4{};
  all4.sin_family = AF_INET;
  return Bind(reinterpret_cast<const sockaddr*>(&all6), sizeof(all6), listener) ||
         Bind(reinterpret_cast<const sockaddr*>(&all4), sizeof(all4), listener);
}

// Where a rank listens that publishes `host`: at that address if an interface has it, otherwise at
// all. Behind a NAT no interface has it, and a name may mean another address here than for the
// peers, as Debian's 127.0.1.1. Who connects must prove to be a rank anyway.
bool BindFor(const std::string& host, Descriptor* listener) {
  absl::StatusOr<Addresses> own =
      ResolveHost({host, "0"}, host == "localhost" ? 0 : AI_NUMERICHOST);
  if (!own.ok()) return BindAll(listener);
  if (Bind((*own)->ai_addr, (*own)->ai_addrlen, listener)) return true;
  return errno == EADDRNOTAVAIL && BindAll(listener);
}

absl::StatusOr<Descriptor> ListenOn(const std::string& host, std::string* port) {
  Descriptor listener;
  sockaddr_storage bound{};
  socklen_t length = sizeof(bound);
  char digits[NI_MAXSERV] = {};
  if (!BindFor(host, &listener) || listen(listener.get(), SOMAXCONN) != 0 ||
      getsockname(listener.get(), reinterpret_cast<sockaddr*>(&bound), &length) != 0 ||
      getnameinfo(reinterpret_cast<const sockaddr*>(&bound), length, nullptr, 0, digits,
                  sizeof(digits), NI_NUMERICSERV) != 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", host, " for other ranks: ", std::strerror(errno)));
  }
  *port = digits;
  return listener;
}

void SendAtOnce(int socket) {
  const int on = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

bool IsHex(const std::string& text, size_t digits) {
  return text.size() == digits && std::all_of(text.begin(), text.end(), absl::ascii_isxdigit);
}

// A rank's connections while they are made. One thread does all, by poll.
class Meeting {
 public:
  Meeting(const PeerLinksOptions& options, const TlsIdentity* identity, std::string secret,
          Descriptor listener, std::map<int, PeerCard> peers)
      : options_(options),
        identity_(identity),
        secret_(std::move(secret)),
        listener_(std::move(listener)),
        peers_(std::move(peers)),
        deadline_(absl::Now() + options.connect_timeout) {}

  absl::StatusOr<std::map<int, PeerLink>> Run() {
    std::vector<HostPort> hosts;
    for (const auto& [rank, card] : peers_) hosts.push_back({card.host, card.port});
    std::vector<absl::StatusOr<Addresses>> found = ResolveHosts(hosts, deadline_);
    size_t next = 0;
    for (const auto& [rank, card] : peers_) {
      Outgoing& out = outgoing_[rank];
      absl::StatusOr<Addresses>& addresses = found[next++];
      if (!addresses.ok()) {
        out.failure = std::string(addresses.status().message());
        return CannotConnect(rank, out, addresses.status().code());
      }
      out.addresses = *std::move(addresses);
      out.retry_at = absl::Now();
    }
    while (connected_.size() + accepted_.size() < 2 * peers_.size()) {
      if (absl::Status s = Turn(); !s.ok()) return s;
    }
    std::map<int, PeerLink> links;
    for (const auto& [rank, card] : peers_) {
      links[rank] = {card.host, std::move(connected_[rank]), std::move(accepted_[rank])};
    }
    return links;
  }

 private:
  enum class Stage { kWaiting, kConnecting, kHandshake, kGreeting, kWelcome, kDone };

  struct Half {
    Stage stage = Stage::kWaiting;
    Descriptor connecting;  // before there is a stream
    std::unique_ptr<ByteStream> stream;
    short events = 0;  // that it waits for
    size_t done = 0;   // bytes of the greeting
    Greeting greeting{};

    int socket() const { return stream != nullptr ? stream->socket() : connecting.get(); }
  };
  struct Outgoing : Half {
    Addresses addresses{nullptr, &freeaddrinfo};
    const addrinfo* address = nullptr;  // that it tries
    absl::Time try_until;               // while it connects
    bool has_skipped = false;           // an address that has not refused, but not answered either
    absl::Time retry_at;
    std::string failure;  // the last
  };
  struct Incoming : Half {
    absl::Time deadline;
  };

  absl::Status Turn() {
    const absl::Time now = absl::Now();
    absl::Time next = std::min(deadline_, now + kLongestPoll);
    for (auto& [rank, out] : outgoing_) {
      if (out.stage == Stage::kConnecting && out.try_until <= now) {
        out.has_skipped = true;
        if (absl::Status s = Refused(rank, &out, ETIMEDOUT); !s.ok()) return s;
      }
      if (out.stage == Stage::kWaiting && out.retry_at <= now) {
        if (absl::Status s = Dial(rank, &out); !s.ok()) return s;
      }
      if (out.stage == Stage::kWaiting) next = std::min(next, out.retry_at);
      if (out.stage == Stage::kConnecting) next = std::min(next, out.try_until);
    }
    incoming_.remove_if([&](const Incoming& in) { return in.deadline <= now; });
    std::vector<pollfd> polled = {{listener_.get(), POLLIN, 0}};
    for (const auto& [rank, out] : outgoing_) {
      const bool waits = out.stage != Stage::kWaiting && out.stage != Stage::kDone;
      polled.push_back({waits ? out.socket() : -1, out.events, 0});
    }
    for (const Incoming& in : incoming_) {
      polled.push_back({in.socket(), in.events, 0});
      next = std::min(next, in.deadline);
    }
    const int64_t left = absl::ToInt64Milliseconds(next - now) + 1;
    poll(polled.data(), polled.size(), static_cast<int>(std::max<int64_t>(left, 0)));
    size_t at = 1;
    for (auto& [rank, out] : outgoing_) {
      if (polled[at++].revents == 0) continue;
      if (absl::Status s = Continue(rank, &out); !s.ok()) return s;
    }
    for (auto in = incoming_.begin(); in != incoming_.end();) {
      const bool ready = polled[at++].revents != 0;
      in = ready && !Continue(&*in) ? incoming_.erase(in) : std::next(in);
    }
    if (polled[0].revents != 0) AcceptSome();
    return absl::Now() < deadline_ ? absl::OkStatus() : TooLate();
  }

  // Connecting.

  absl::Status Dial(int rank, Outgoing* out) {
    if (out->address == nullptr) out->address = out->addresses.get();
    const addrinfo& to = *out->address;
    Descriptor made(socket(to.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!made.ok()) return Refused(rank, out, errno);
    const int error = connect(made.get(), to.ai_addr, to.ai_addrlen) == 0 ? 0 : errno;
    if (error != 0 && error != EINPROGRESS) return Refused(rank, out, error);
    out->connecting = std::move(made);
    out->stage = Stage::kConnecting;
    const bool is_only = out->address == out->addresses.get() && to.ai_next == nullptr;
    out->try_until = is_only ? absl::InfiniteFuture() : absl::Now() + kAddressWait;
    out->events = POLLOUT;
    return absl::OkStatus();
  }

  // The next of the peer's addresses, if it has one: a name may have some of IPv6 and of IPv4.
  absl::Status Refused(int rank, Outgoing* out, int error) {
    out->failure = std::strerror(error);
    out->address = out->address->ai_next;
    Reset(out);
    if (out->address != nullptr) return absl::OkStatus();
    if (out->has_skipped) {
      out->has_skipped = false;
      out->retry_at = absl::Now() + kRetryWait;
      return absl::OkStatus();
    }
    // Whoever publishes a port listens there, until its process ends.
    return CannotConnect(rank, *out, absl::StatusCode::kUnavailable);
  }

  static void Reset(Outgoing* out) {
    out->stage = Stage::kWaiting;
    out->connecting = Descriptor();
    out->stream.reset();
    out->done = 0;
    out->retry_at = absl::Now();
  }

  // The peer may have been busy with strangers.
  absl::Status TryAgain(int rank, Outgoing* out, const absl::Status& failure) {
    out->failure = std::string(failure.message());
    if (absl::IsUnauthenticated(failure)) {
      return CannotConnect(rank, *out, absl::StatusCode::kUnavailable);
    }
    Reset(out);
    out->retry_at = absl::Now() + kRetryWait;
    return absl::OkStatus();
  }

  absl::Status Continue(int rank, Outgoing* out) {
    if (out->stage == Stage::kConnecting) {
      int error = 0;
      socklen_t length = sizeof(error);
      if (getsockopt(out->connecting.get(), SOL_SOCKET, SO_ERROR, &error, &length) != 0) {
        error = errno;
      }
      if (error != 0) return Refused(rank, out, error);
      SendAtOnce(out->connecting.get());
      const PeerCard& card = peers_.at(rank);
      out->stream = identity_ == nullptr
                        ? NewPlainStream(std::move(out->connecting))
                        : identity_->Connect(std::move(out->connecting), {card.fingerprint});
      std::memcpy(out->greeting.secret, card.secret.data(), kSecretDigits);
      out->greeting.rank = htonl(static_cast<uint32_t>(options_.rank));
      out->stage = Stage::kHandshake;
    }
    if (out->stage == Stage::kHandshake) {
      absl::StatusOr<short> needed = out->stream->Handshake();
      if (!needed.ok()) return TryAgain(rank, out, needed.status());
      out->events = *needed;
      if (*needed != 0) return absl::OkStatus();
      out->stage = Stage::kGreeting;
      out->events = POLLOUT;
    }
    while (out->stage == Stage::kGreeting) {
      const char* bytes = reinterpret_cast<const char*>(&out->greeting);
      absl::StatusOr<int64_t> written = out->stream->Write(
          bytes + out->done, static_cast<int64_t>(sizeof(out->greeting) - out->done));
      if (!written.ok()) return TryAgain(rank, out, written.status());
      if (*written == 0) return absl::OkStatus();
      out->done += static_cast<size_t>(*written);
      if (out->done < sizeof(out->greeting)) continue;
      out->stage = Stage::kWelcome;
      out->events = POLLIN;
    }
    char welcome = 0;
    absl::StatusOr<int64_t> got = out->stream->Read(&welcome, 1);
    if (got.ok() && *got == 0) return absl::OkStatus();
    if (got.ok() && welcome != kWelcome) got = absl::UnavailableError("its answer makes no sense");
    if (!got.ok()) return TryAgain(rank, out, got.status());
    out->stage = Stage::kDone;
    connected_[rank] = std::move(out->stream);
    return absl::OkStatus();
  }

  // Accepting.

  void AcceptSome() {
    while (true) {
      Descriptor accepted(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!accepted.ok()) return;
      SendAtOnce(accepted.get());
      if (incoming_.size() >= kMostStrangers + peers_.size()) incoming_.pop_front();
      Incoming& in = incoming_.emplace_back();
      in.deadline = absl::Now() + kGreetingWait;
      std::set<std::string> expected;
      for (const auto& [rank, card] : peers_) expected.insert(card.fingerprint);
      in.stream = identity_ == nullptr
                      ? NewPlainStream(std::move(accepted))
                      : identity_->Accept(std::move(accepted), std::move(expected));
      in.stage = Stage::kHandshake;
      in.events = POLLIN;
    }
  }

  // Returns false when the connection is done with: it is a rank's, or nobody's.
  bool Continue(Incoming* in) {
    if (in->stage == Stage::kHandshake) {
      absl::StatusOr<short> needed = in->stream->Handshake();
      if (!needed.ok()) return false;
      in->events = *needed;
      if (*needed != 0) return true;
      in->stage = Stage::kGreeting;
      in->events = POLLIN;
    }
    while (in->stage == Stage::kGreeting) {
      char* bytes = reinterpret_cast<char*>(&in->greeting);
      absl::StatusOr<int64_t> got =
          in->stream->Read(bytes + in->done, static_cast<int64_t>(sizeof(in->greeting) - in->done));
      if (!got.ok()) return false;
      if (*got == 0) return true;
      in->done += static_cast<size_t>(*got);
      if (in->done < sizeof(in->greeting)) continue;
      if (!IsWhoItSays(*in)) return false;
      in->stage = Stage::kWelcome;
      in->events = POLLOUT;
    }
    absl::StatusOr<int64_t> written = in->stream->Write(&kWelcome, 1);
    if (written.ok() && *written == 0) return true;
    if (!written.ok()) return false;
    // A rank that comes again has given up its last connection.
    accepted_[static_cast<int>(ntohl(in->greeting.rank))] = std::move(in->stream);
    return false;
  }

  bool IsWhoItSays(const Incoming& in) const {
    if (CRYPTO_memcmp(in.greeting.secret, secret_.data(), kSecretDigits) != 0) return false;
    const auto who = peers_.find(static_cast<int>(ntohl(in.greeting.rank)));
    return who != peers_.end() && in.stream->peer_fingerprint() == who->second.fingerprint;
  }

  // Errors.

  absl::Status CannotConnect(int rank, const Outgoing& out, absl::StatusCode code) const {
    const std::string pair =
        absl::StrCat(NameOfRank(options_.rank, options_.host), " cannot connect to ",
                     NameOfRank(rank, peers_.at(rank).host));
    return WithUnreachableRank(absl::Status(code, absl::StrCat(pair, ": ", out.failure, kRoute)),
                               rank);
  }

  absl::Status TooLate() {
    for (auto& [rank, out] : outgoing_) {
      if (out.stage == Stage::kDone) continue;
      if (out.failure.empty()) out.failure = std::strerror(ETIMEDOUT);
      return CannotConnect(rank, out, absl::StatusCode::kDeadlineExceeded);
    }
    for (const auto& [rank, card] : peers_) {
      if (accepted_.count(rank) > 0) continue;
      return WithUnreachableRank(absl::DeadlineExceededError(absl::StrCat(
                                     NameOfRank(rank, card.host), " has not connected to ",
                                     NameOfRank(options_.rank, options_.host), " within ",
                                     absl::FormatDuration(options_.connect_timeout), kRoute)),
                                 rank);
    }
    return absl::OkStatus();
  }

  const PeerLinksOptions& options_;
  const TlsIdentity* const identity_;  // null: in clear
  const std::string secret_;
  const Descriptor listener_;
  const std::map<int, PeerCard> peers_;
  const absl::Time deadline_;
  std::map<int, Outgoing> outgoing_;
  std::list<Incoming> incoming_;  // that have not proved to be a rank; the oldest first
  std::map<int, std::unique_ptr<ByteStream>> connected_, accepted_;
};

// Some ranks encrypt and others do not: tensors must not pass in clear because one worker was
// started otherwise than its operator believes.
absl::Status Mixed(const std::map<int, PeerCard>& cards) {
  std::vector<std::string> trusting, encrypting;
  for (const auto& [rank, card] : cards) {
    const std::string name =
        card.worker.empty() ? NameOfRank(rank, card.host)
                            : absl::StrCat(card.worker, " (", NameOfRank(rank, card.host), ")");
    (card.fingerprint.empty() ? trusting : encrypting).push_back(name);
  }
  if (trusting.empty() || encrypting.empty()) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat(
      "the workers of a job must agree whether tensors between hosts are encrypted, but ",
      absl::StrJoin(trusting, ", "), " runs with --trusted-network and ",
      absl::StrJoin(encrypting, ", "),
      " without: start all workers with it, if you trust the network between them, or all without "
      "it"));
}

}  // namespace

std::string PeerCard::Encode() const {
  return absl::StrCat(identity, " ", host, " ", port, " ", secret, " ",
                      fingerprint.empty() ? "clear" : fingerprint, " ",
                      absl::BytesToHexString(worker), ".");
}

std::optional<PeerCard> PeerCard::Decode(const std::string& text) {
  const std::vector<std::string> words = absl::StrSplit(text, ' ');
  if (words.size() != 6 || !IsHex(words[3], kSecretDigits) ||
      (words[4] != "clear" && !IsHex(words[4], kFingerprintDigits)) || words[5].empty() ||
      words[5].back() != '.') {
    return std::nullopt;
  }
  const std::string worker = words[5].substr(0, words[5].size() - 1);
  if (worker.size() % 2 != 0 || !IsHex(worker, worker.size())) return std::nullopt;
  return PeerCard{words[0],
                  words[1],
                  words[2],
                  words[3],
                  words[4] == "clear" ? "" : words[4],
                  absl::HexStringToBytes(worker)};
}

std::string NameOfRank(int rank, const std::string& host) {
  return absl::StrCat("rank ", rank, " (", host, ")");
}

absl::StatusOr<std::map<int, PeerLink>> ConnectPeers(
    const PeerLinksOptions& options, RendezvousStore& store,
    absl::FunctionRef<bool(int rank, const PeerCard& card)> wanted) {
  const absl::Time deadline = absl::Now() + options.connect_timeout;
  const auto key = [&](int rank) { return absl::StrCat(options.purpose, "/", rank); };
  std::unique_ptr<TlsIdentity> identity;
  PeerCard mine;
  if (options.network.encrypted) {
    absl::StatusOr<std::unique_ptr<TlsIdentity>> made = TlsIdentity::Make();
    if (!made.ok()) return made.status();
    identity = *std::move(made);
    mine.fingerprint = identity->fingerprint();
  }
  absl::StatusOr<std::string> secret = RandomId();
  if (!secret.ok()) return secret.status();
  mine.secret = *secret;
  mine.identity = HostIdentity();
  if (mine.identity.empty()) mine.identity = "?";
  mine.host = options.host;
  mine.worker = options.network.worker;
  absl::StatusOr<Descriptor> listener = ListenOn(options.host, &mine.port);
  if (!listener.ok()) return listener.status();
  if (absl::Status s = store.Set(key(options.rank), mine.Encode()); !s.ok()) return s;
  std::map<int, PeerCard> cards = {{options.rank, mine}}, chosen;
  for (int peer = 0; peer < options.size; ++peer) {
    if (peer == options.rank) continue;
    absl::StatusOr<std::string> published = store.Get(key(peer), deadline - absl::Now());
    if (!published.ok()) return published.status();
    std::optional<PeerCard> card = PeerCard::Decode(*published);
    if (!card.has_value()) {
      return absl::InternalError(absl::StrCat("rank ", peer, " published no address"));
    }
    if (wanted(peer, *card)) chosen.emplace(peer, *card);
    cards.emplace(peer, *std::move(card));
  }
  if (chosen.empty()) return std::map<int, PeerLink>();
  if (absl::Status s = Mixed(cards); !s.ok()) return s;
  return Meeting(options, identity.get(), *std::move(secret), *std::move(listener),
                 std::move(chosen))
      .Run();
}

}  // namespace espalier
