// Ranks connect though strangers do, too, who are refused; errors name the pair.
#include "worker/collective/peer_links.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "worker/collective/in_process_communicator.h"
#include "worker/collective/tls_stream.h"
#include "worker/collective/unreachable_rank.h"

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Links = absl::StatusOr<std::map<int, PeerLink>>;

PeerLinksOptions OptionsOf(int rank, int size, absl::Duration timeout = absl::Seconds(10)) {
  PeerLinksOptions options;
  options.rank = rank;
  options.size = size;
  options.connect_timeout = timeout;
  return options;
}

Links Connect(const PeerLinksOptions& options, RendezvousStore& store) {
  return ConnectPeers(options, store, [](int, const PeerCard&) { return true; });
}

// Changes what one rank reads in the store.
class Changed : public RendezvousStore {
 public:
  Changed(RendezvousStore& store, std::function<void(PeerCard*)> change)
      : store_(store), change_(std::move(change)) {}
  absl::Status Set(const std::string& key, const std::string& value) override {
    return store_.Set(key, value);
  }
  absl::StatusOr<std::string> Get(const std::string& key, absl::Duration timeout) override {
    absl::StatusOr<std::string> value = store_.Get(key, timeout);
    if (!value.ok()) return value;
    std::optional<PeerCard> card = PeerCard::Decode(*value);
    EXPECT_TRUE(card.has_value());
    change_(&*card);
    return card->Encode();
  }

 private:
  RendezvousStore& store_;
  const std::function<void(PeerCard*)> change_;
};

Descriptor Dial(const PeerCard& card) {
  Descriptor made(socket(AF_INET, SOCK_STREAM, 0));
  int port = 0;
  EXPECT_TRUE(absl::SimpleAtoi(card.port, &port));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(made.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  return made;
}

void ExpectConnected(std::map<int, PeerLink>& a, std::map<int, PeerLink>& b, int rank_of_a,
                     int rank_of_b) {
  ByteStream& out = *a.at(rank_of_b).out;
  ByteStream& in = *b.at(rank_of_a).in;
  ASSERT_EQ(*out.Write("x", 1), 1);
  char got = 0;
  for (int64_t read = 0; read == 0;) {
    pollfd polled{in.socket(), POLLIN, 0};
    poll(&polled, 1, 5000);
    absl::StatusOr<int64_t> now = in.Read(&got, 1);
    ASSERT_TRUE(now.ok()) << now.status();
    read = *now;
  }
  EXPECT_EQ(got, 'x');
}

class PeerLinksTest : public testing::TestWithParam<bool> {  // encrypted
 protected:
  PeerLinksOptions Of(int rank, int size, absl::Duration timeout = absl::Seconds(10)) {
    PeerLinksOptions options = OptionsOf(rank, size, timeout);
    options.network.encrypted = GetParam();
    return options;
  }
  PeerCard CardOf(int rank) {
    absl::StatusOr<std::string> said =
        store_->Get("tensors/" + std::to_string(rank), absl::Seconds(5));
    EXPECT_TRUE(said.ok()) << said.status();
    return *PeerCard::Decode(*said);
  }

  std::unique_ptr<RendezvousStore> store_ = NewInProcessStore();
};

INSTANTIATE_TEST_SUITE_P(, PeerLinksTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "Encrypted" : "Plain"; });

// Strangers that say nothing, that say something else, and that speak TLS with a certificate of
// their own, many of them, before the second rank comes.
TEST_P(PeerLinksTest, StrangersGetNothingAndDisturbNothing) {
  Links links[2] = {absl::UnknownError(""), absl::UnknownError("")};
  // The second rank has published its address and comes when the strangers are there.
  absl::Notification comes;
  Changed late(*store_, [&](PeerCard*) { comes.WaitForNotification(); });
  std::thread other([&] { links[1] = Connect(Of(1, 2), late); });
  std::thread first([&] { links[0] = Connect(Of(0, 2), *store_); });
  const PeerCard card = CardOf(0);
  std::vector<Descriptor> strangers;
  auto identity = TlsIdentity::Make();
  ASSERT_TRUE(identity.ok());
  std::vector<std::unique_ptr<ByteStream>> impostors;
  for (int i = 0; i < 300; ++i) {
    strangers.push_back(Dial(card));
    if (i % 3 == 1) {
      const char request[] = "GET / HTTP/1.1\r\nHost: here\r\nAccept: everything\r\n\r\n";
      send(strangers.back().get(), request, sizeof(request), MSG_NOSIGNAL);
    }
    if (i % 3 == 2) {
      impostors.push_back((*identity)->Connect(std::move(strangers.back()), {card.fingerprint}));
      impostors.back()->Handshake().IgnoreError();
    }
  }
  // So many are not kept, and the oldest goes first.
  pollfd oldest{strangers[0].get(), POLLIN, 0};
  EXPECT_EQ(poll(&oldest, 1, 5000), 1);
  comes.Notify();
  first.join();
  other.join();
  for (const Links& made : links) ASSERT_TRUE(made.ok()) << made.status();
  ExpectConnected(*links[0], *links[1], 0, 1);
  ExpectConnected(*links[1], *links[0], 1, 0);
  for (const Descriptor& stranger : strangers) {
    if (!stranger.ok()) continue;
    char bytes[64];
    const ssize_t got = recv(stranger.get(), bytes, sizeof(bytes), 0);
    // A TLS alert is all that one may hear.
    EXPECT_LE(got, 7);
  }
  for (const auto& impostor : impostors) {
    absl::StatusOr<int64_t> got = int64_t{0};
    char byte = 0;
    for (const absl::Time end = absl::Now() + absl::Seconds(5);
         got.ok() && *got == 0 && absl::Now() < end;) {
      pollfd polled{impostor->socket(), POLLIN, 0};
      poll(&polled, 1, 100);
      absl::StatusOr<short> needed = impostor->Handshake();
      got = needed.ok() ? *needed == 0 ? impostor->Read(&byte, 1) : int64_t{0}
                        : absl::StatusOr<int64_t>(needed.status());
    }
    EXPECT_FALSE(got.ok()) << "an impostor was answered";
  }
}

// Somebody else listens where the rank was, or the store says another certificate.
TEST(PeerLinks, ARankWithAnotherCertificateIsNobody) {
  std::unique_ptr<RendezvousStore> store = NewInProcessStore();
  Changed lied(*store, [](PeerCard* card) {
    card->fingerprint[0] = card->fingerprint[0] == '0' ? '1' : '0';
  });
  Links links[2] = {absl::UnknownError(""), absl::UnknownError("")};
  std::thread other([&] { links[1] = Connect(OptionsOf(1, 2, absl::Seconds(1)), *store); });
  links[0] = Connect(OptionsOf(0, 2), lied);
  other.join();
  EXPECT_TRUE(absl::IsUnavailable(links[0].status())) << links[0].status();
  EXPECT_THAT(links[0].status().message(),
              AllOf(HasSubstr("rank 0 (127.0.0.1) cannot connect to rank 1 (127.0.0.1)"),
                    HasSubstr("another certificate than the rank has published")));
  EXPECT_EQ(UnreachableRank(links[0].status()), 1);
  EXPECT_FALSE(links[1].ok());
  EXPECT_EQ(UnreachableRank(links[1].status()), 0);
}

// In clear the secret is all that a rank has.
TEST_P(PeerLinksTest, ARankWithoutTheSecretIsNobody) {
  Changed lied(*store_, [](PeerCard* card) { card->secret = std::string(32, '0'); });
  Links links[2] = {absl::UnknownError(""), absl::UnknownError("")};
  std::thread other([&] { links[1] = Connect(Of(1, 2, absl::Seconds(1)), lied); });
  links[0] = Connect(Of(0, 2, absl::Seconds(1)), *store_);
  other.join();
  EXPECT_TRUE(absl::IsDeadlineExceeded(links[0].status())) << links[0].status();
  EXPECT_THAT(links[0].status().message(),
              HasSubstr("rank 1 (127.0.0.1) has not connected to rank 0 (127.0.0.1)"));
  EXPECT_FALSE(links[1].ok());
}

TEST(PeerLinks, AMixIsRefusedByNameOnEveryRank) {
  std::unique_ptr<RendezvousStore> store = NewInProcessStore();
  Links links[3] = {absl::UnknownError(""), absl::UnknownError(""), absl::UnknownError("")};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      PeerLinksOptions options = OptionsOf(rank, 3);
      options.network.encrypted = rank != 1;
      options.network.worker = "worker on host " + std::to_string(rank);
      links[rank] = Connect(options, *store);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Links& refused : links) {
    EXPECT_TRUE(absl::IsPermissionDenied(refused.status())) << refused.status();
    EXPECT_THAT(
        refused.status().message(),
        AllOf(HasSubstr("worker on host 1 (rank 1 (127.0.0.1)) runs with --trusted-network"),
              HasSubstr("worker on host 0"), HasSubstr("worker on host 2"),
              HasSubstr("start all workers with it")));
  }
}

// A port at which the kernel takes connections and nobody answers.
TEST_P(PeerLinksTest, APeerThatNeverAnswersIsNamedInTime) {
  Descriptor silent(socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  ASSERT_EQ(bind(silent.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(listen(silent.get(), 5), 0);
  ASSERT_EQ(getsockname(silent.get(), reinterpret_cast<sockaddr*>(&address), &length), 0);
  PeerCard card;
  card.identity = "elsewhere";
  card.host = "127.0.0.1";
  card.port = std::to_string(ntohs(address.sin_port));
  card.secret = std::string(32, '0');
  if (GetParam()) card.fingerprint = std::string(64, '0');
  ASSERT_TRUE(store_->Set("tensors/1", card.Encode()).ok());
  const absl::Time begin = absl::Now();
  const Links links = Connect(Of(0, 2, absl::Milliseconds(500)), *store_);
  EXPECT_TRUE(absl::IsDeadlineExceeded(links.status())) << links.status();
  EXPECT_EQ(UnreachableRank(links.status()), 1);
  EXPECT_THAT(links.status().message(), HasSubstr("rank 1 (127.0.0.1)"));
  EXPECT_LT(absl::Now() - begin, absl::Seconds(5));
}

// The address of a NAT, and a name that means something for the peers only.
TEST_P(PeerLinksTest, RanksListenThoughNoInterfaceHasTheirAddress) {
  for (const char* const host : {"203.0.113.5", "a-name.invalid"}) {
    std::unique_ptr<RendezvousStore> store = NewInProcessStore();
    Links links[2] = {absl::UnknownError(""), absl::UnknownError("")};
    const auto connect = [&](int rank) {
      Changed reached(*store, [&](PeerCard* card) {
        EXPECT_EQ(card->host, host);
        card->host = "127.0.0.1";
      });
      PeerLinksOptions options = Of(rank, 2);
      options.host = host;
      links[rank] = Connect(options, reached);
    };
    std::thread other([&] { connect(1); });
    connect(0);
    other.join();
    for (const Links& made : links) ASSERT_TRUE(made.ok()) << made.status();
    ExpectConnected(*links[0], *links[1], 0, 1);
  }
}

// Of a name's two addresses the first neither answers nor refuses, as where a route for IPv6 is
// dead.
TEST(PeerLinks, AnAddressThatDoesNotAnswerCostsTheMeetingLittle) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  ASSERT_EQ(getaddrinfo("localhost", "1", &hints, &found), 0);
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses(found, &freeaddrinfo);
  if (found->ai_family != AF_INET6 || found->ai_next == nullptr) {
    GTEST_SKIP() << "localhost is not first an address of IPv6, then one of IPv4, here";
  }
  std::unique_ptr<RendezvousStore> store = NewInProcessStore();
  std::vector<Descriptor> blockers;
  // Its queue is full: the kernel drops who comes next.
  const auto block = [&](PeerCard* card) {
    card->host = "localhost";
    sockaddr_in6 address{};
    address.sin6_family = AF_INET6;
    address.sin6_addr = in6addr_loopback;
    int port = 0;
    ASSERT_TRUE(absl::SimpleAtoi(card->port, &port));
    address.sin6_port = htons(static_cast<uint16_t>(port));
    const auto* to = reinterpret_cast<const sockaddr*>(&address);
    const int on = 1;
    const int listener = blockers.emplace_back(socket(AF_INET6, SOCK_STREAM, 0)).get();
    setsockopt(listener, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on));
    ASSERT_EQ(bind(listener, to, sizeof(address)), 0);
    ASSERT_EQ(listen(listener, 0), 0);
    for (int i = 0; i < 3; ++i) {
      const int dialed =
          blockers.emplace_back(socket(AF_INET6, SOCK_STREAM | SOCK_NONBLOCK, 0)).get();
      connect(dialed, to, sizeof(address));
    }
  };
  Changed blocked(*store, block);
  Links links[2] = {absl::UnknownError(""), absl::UnknownError("")};
  const absl::Time begin = absl::Now();
  std::thread other([&] { links[1] = Connect(OptionsOf(1, 2, absl::Seconds(20)), *store); });
  links[0] = Connect(OptionsOf(0, 2, absl::Seconds(20)), blocked);
  other.join();
  for (const Links& made : links) ASSERT_TRUE(made.ok()) << made.status();
  ExpectConnected(*links[0], *links[1], 0, 1);
  EXPECT_LT(absl::Now() - begin, absl::Seconds(10));
}

TEST(PeerLinks, CardsAreRead) {
  PeerCard card;
  card.identity = "boot/net/0";
  card.host = "fe80::1";
  card.port = "42";
  card.secret = std::string(32, 'a');
  card.worker = "a worker's name";
  for (const std::string& fingerprint : {std::string(), std::string(64, 'f')}) {
    card.fingerprint = fingerprint;
    const std::optional<PeerCard> read = PeerCard::Decode(card.Encode());
    ASSERT_TRUE(read.has_value());
    EXPECT_EQ(read->fingerprint, fingerprint);
    EXPECT_EQ(read->worker, card.worker);
    EXPECT_EQ(read->Encode(), card.Encode());
  }
  const std::string text = card.Encode();
  for (const std::string& wrong :
       {std::string(), std::string("a b c d e f"), text.substr(0, text.size() - 2), text + " more",
        "x" + text.substr(text.find(' ')).replace(4, 3, "  ")}) {
    EXPECT_FALSE(PeerCard::Decode(wrong).has_value()) << wrong;
  }
}

}  // namespace
}  // namespace espalier
