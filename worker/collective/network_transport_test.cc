// What ends a message halfway: a peer that dies, one that takes nothing, Abort.
#include "worker/collective/network_transport.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "worker/collective/in_process_communicator.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kLarge = 64 << 20;  // more than the kernel keeps of a connection

class NetworkTransportTest : public testing::TestWithParam<bool> {  // encrypted
 protected:
  NetworkTransportTest() {
    std::unique_ptr<RendezvousStore> store = NewInProcessStore();
    const auto connect = [&](int rank) {
      PeerLinksOptions options;
      options.rank = rank;
      options.size = 2;
      options.network.encrypted = GetParam();
      auto links = ConnectPeers(options, *store, [](int, const PeerCard&) { return true; });
      ASSERT_TRUE(links.ok()) << links.status();
      links_[rank] = *std::move(links);
    };
    std::thread other([&] { connect(1); });
    connect(0);
    other.join();
  }
  std::unique_ptr<NetworkTransport> Transport(int rank, absl::Duration timeout = absl::Seconds(30),
                                              int64_t most = int64_t{1} << 30) {
    return std::make_unique<NetworkTransport>(
        std::move(links_[rank]), NetworkTransportOptions{timeout, most, [] { return false; }});
  }

  std::map<int, PeerLink> links_[2];
};

INSTANTIATE_TEST_SUITE_P(, NetworkTransportTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "Encrypted" : "Plain"; });

TEST_P(NetworkTransportTest, APeerThatDiesInTheMiddleOfAMessageIsNamedAtOnce) {
  auto survivor = Transport(0);
  const std::vector<char> half(4 << 20, 'h');
  MessageWriter writer;
  absl::StatusOr<int64_t> sent =
      writer.Push(*links_[1].at(0).out, 1, half.data(), static_cast<int64_t>(half.size()), 0);
  ASSERT_TRUE(sent.ok()) << sent.status();
  ASSERT_LT(*sent, static_cast<int64_t>(half.size())) << "the whole message fits into the kernel";
  std::thread dying([&] {
    absl::SleepFor(absl::Milliseconds(200));
    links_[1].clear();
  });
  std::vector<char> received(half.size());
  const absl::Time begin = absl::Now();
  const absl::Status got =
      survivor->Receive(received.data(), static_cast<int64_t>(received.size()), 1, 1);
  dying.join();
  EXPECT_TRUE(absl::IsUnavailable(got)) << got;
  EXPECT_THAT(got.message(), HasSubstr("cannot receive from rank 1 (127.0.0.1): it has closed"));
  EXPECT_LT(absl::Now() - begin, absl::Seconds(5));
  EXPECT_EQ(survivor->Send("x", 1, 1, 2), got) << "it is unusable";
}

TEST_P(NetworkTransportTest, APeerThatDiesWhileItIsSentToIsNamedAtOnce) {
  auto survivor = Transport(0);
  const std::vector<char> data(kLarge, 'd');
  ASSERT_TRUE(survivor->Send(data.data(), kLarge, 1, 1).ok());
  std::thread dying([&] {
    absl::SleepFor(absl::Milliseconds(200));
    links_[1].clear();
  });
  const absl::Time begin = absl::Now();
  const absl::Status flushed = survivor->Flush();
  dying.join();
  EXPECT_TRUE(absl::IsUnavailable(flushed)) << flushed;
  EXPECT_THAT(flushed.message(), HasSubstr("cannot send to rank 1 (127.0.0.1)"));
  EXPECT_LT(absl::Now() - begin, absl::Seconds(5));
}

TEST_P(NetworkTransportTest, EndStopsALargeSendAtOnce) {
  auto sender = Transport(0, absl::Seconds(60), kLarge);
  const std::vector<char> data(kLarge, 'd');
  ASSERT_TRUE(sender->Send(data.data(), kLarge, 1, 1).ok());
  std::thread ending([&] {
    absl::SleepFor(absl::Milliseconds(200));
    sender->End(absl::CancelledError("job cancelled"));
  });
  const absl::Time begin = absl::Now();
  // The first fills the buffers.
  EXPECT_EQ(sender->Send(data.data(), kLarge, 1, 1), absl::CancelledError("job cancelled"));
  EXPECT_EQ(sender->Flush(), absl::CancelledError("job cancelled"));
  ending.join();
  sender.reset();
  EXPECT_LT(absl::Now() - begin, absl::Seconds(5));
}

TEST_P(NetworkTransportTest, APeerThatTakesNothingIsNamedAfterTheTimeout) {
  auto sender = Transport(0, absl::Milliseconds(300));
  const std::vector<char> data(kLarge, 'd');
  ASSERT_TRUE(sender->Send(data.data(), kLarge, 1, 1).ok());
  const absl::Status flushed = sender->Flush();
  EXPECT_TRUE(absl::IsDeadlineExceeded(flushed)) << flushed;
  EXPECT_THAT(flushed.message(), HasSubstr("rank 1 (127.0.0.1)"));
}

// Whoever has sent everything may end: what is on the way arrives.
TEST_P(NetworkTransportTest, TheLastMessageOfARankThatEndsArrives) {
  auto receiver = Transport(0), sender = Transport(1);
  const std::vector<char> data(8 << 20, 'l');
  std::vector<char> received(data.size());
  std::thread sending([&] {
    EXPECT_TRUE(sender->Send(data.data(), static_cast<int64_t>(data.size()), 0, 1).ok());
    EXPECT_TRUE(sender->Flush().ok());
    sender.reset();
  });
  absl::SleepFor(absl::Milliseconds(100));
  // The receiver has sent what nobody will read, which must not reset the other direction.
  EXPECT_TRUE(receiver->Send("unread", 6, 1, 9).ok());
  const absl::Status got =
      receiver->Receive(received.data(), static_cast<int64_t>(received.size()), 1, 1);
  sending.join();
  EXPECT_TRUE(got.ok()) << got;
  EXPECT_TRUE(received == data);
}

TEST_P(NetworkTransportTest, MessagesOfOtherTagsWait) {
  auto receiver = Transport(0), sender = Transport(1);
  const std::vector<char> large(3 << 20, 'a');
  std::thread sending([&] {
    EXPECT_TRUE(sender->Send(large.data(), static_cast<int64_t>(large.size()), 0, 1).ok());
    EXPECT_TRUE(sender->Send("b", 1, 0, 2).ok());
    EXPECT_TRUE(sender->Send("c", 1, 0, 1).ok());
    EXPECT_TRUE(sender->Flush().ok());
  });
  char got = 0;
  std::vector<char> received(large.size());
  EXPECT_TRUE(receiver->Receive(&got, 1, 1, 2).ok());
  EXPECT_EQ(got, 'b');
  EXPECT_TRUE(receiver->Receive(received.data(), static_cast<int64_t>(received.size()), 1, 1).ok());
  EXPECT_TRUE(received == large);
  const absl::Status wrong = receiver->Receive(received.data(), 2, 1, 1);
  EXPECT_THAT(wrong.message(), HasSubstr("it sent 1 bytes where 2 were expected"));
  sending.join();
}

}  // namespace
}  // namespace espalier
