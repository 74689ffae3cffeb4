// Tests specific to the shared-memory transport; collective_test.cc tests what all communicators
// do.
#include "worker/collective/shm_transport.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <barrier>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <functional>
#include <iterator>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "worker/collective/descriptor.h"
#include "worker/collective/in_process_communicator.h"

namespace espalier {
namespace {

using Transports = std::vector<std::unique_ptr<ShmTransport>>;

Transports ConnectAll(int size, absl::Duration timeout = absl::Seconds(10)) {
  std::unique_ptr<RendezvousStore> store = NewInProcessStore();
  Transports all(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      auto made = ShmTransport::Connect(rank, size, *store, timeout, timeout);
      ASSERT_TRUE(made.ok()) << made.status();
      all[rank] = *std::move(made);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return all;
}

// Bytes that depend on position and seed.
std::vector<char> Pattern(int64_t bytes, int seed) {
  std::vector<char> data(static_cast<size_t>(bytes));
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(seed + i * 31 + (i >> 12));
  return data;
}

TEST(ShmTransport, RanksOfOneHostAreConnectedPairwise) {
  const Transports all = ConnectAll(4);
  for (int a = 0; a < 4; ++a) {
    for (int b = 0; b < 4; ++b) EXPECT_EQ(all[a]->IsLocal(b), a != b) << a << " " << b;
  }
}

// A cloned virtual machine appears to be the same host, but its socket does not answer.
TEST(ShmTransport, UnreachableRankGetsNoChannel) {
  std::unique_ptr<RendezvousStore> store = NewInProcessStore();
  std::string real;
  std::thread rank0([&] {
    // Publishes what rank 0 would, with a socket that does not exist.
    std::unique_ptr<RendezvousStore> other = NewInProcessStore();
    constexpr absl::Duration kSoon = absl::Milliseconds(100);
    ASSERT_FALSE(ShmTransport::Connect(0, 2, *other, kSoon, kSoon).ok());
    real = other->Get("host/0", absl::Seconds(1)).value();
    ASSERT_TRUE(store->Set("host/0", real).ok());
    EXPECT_EQ(store->Get("host/0/1", absl::Seconds(10)).value(), "");
  });
  auto transport = ShmTransport::Connect(1, 2, *store, absl::Seconds(10), absl::Seconds(10));
  rank0.join();
  ASSERT_TRUE(transport.ok()) << transport.status();
  EXPECT_FALSE((*transport)->IsLocal(0));
}

int OpenDescriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<int>(std::distance(std::filesystem::begin(all), std::filesystem::end(all)));
}

// Other users see the socket's name. Some say nothing, some send descriptors, before the rank
// comes.
TEST(ShmTransport, StrangersHoldUpNothingAndLeaveNothing) {
  const int before = OpenDescriptors();
  std::unique_ptr<RendezvousStore> store = NewInProcessStore();
  absl::StatusOr<std::unique_ptr<ShmTransport>> ranks[2] = {absl::UnknownError(""),
                                                            absl::UnknownError("")};
  const absl::Time begin = absl::Now();
  const auto connect = [&](int rank) {
    ranks[rank] = ShmTransport::Connect(rank, 2, *store, absl::Seconds(20), absl::Seconds(20));
  };
  std::thread first([&] { connect(0); });
  const std::vector<std::string> said =
      absl::StrSplit(store->Get("host/0", absl::Seconds(5)).value(), ' ');
  ASSERT_EQ(said.size(), 3u);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, said[1].data(), said[1].size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + said[1].size());
  std::vector<Descriptor> strangers;
  for (int i = 0; i < 200; ++i) {
    const Descriptor& stranger =
        strangers.emplace_back(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0));
    const bool there =
        ::connect(stranger.get(), reinterpret_cast<sockaddr*>(&address), length) == 0;
    if (!there || i % 2 == 0) continue;
    char text[20] = {};
    iovec data{text, sizeof(text)};
    alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(2 * sizeof(int));
    const int two[2] = {0, 1};
    std::memcpy(CMSG_DATA(header), two, sizeof(two));
    EXPECT_EQ(sendmsg(stranger.get(), &message, MSG_NOSIGNAL), 20);
  }
  connect(1);
  first.join();
  EXPECT_LT(absl::Now() - begin, absl::Seconds(4));
  for (auto& rank : ranks) {
    ASSERT_TRUE(rank.ok()) << rank.status();
    EXPECT_TRUE((*rank)->IsLocal(&rank == &ranks[0] ? 1 : 0));
    rank->reset();
  }
  strangers.clear();
  EXPECT_EQ(OpenDescriptors(), before);
}

TEST(ShmTransport, MessagesOfAllSizesArriveWhole) {
  const Transports all = ConnectAll(2);
  int seed = 0;
  for (int64_t bytes :
       {1, 63, 64, 65, 4096, (256 << 10) - 1, 256 << 10, (256 << 10) + 1, 5 << 20}) {
    const std::vector<char> sent = Pattern(bytes, ++seed);
    std::vector<char> got(sent.size());
    ASSERT_TRUE(all[0]->Send(sent.data(), bytes, 1, 7).ok());
    ASSERT_TRUE(all[1]->Receive(got.data(), bytes, 0, 7).ok());
    ASSERT_EQ(sent, got) << bytes;
  }
}

TEST(ShmTransport, TagsMayBeReceivedInAnotherOrder) {
  const Transports all = ConnectAll(2);
  std::vector<std::vector<char>> sent;
  for (int tag = 0; tag < 6; ++tag) {
    sent.push_back(Pattern(300000 + 1000 * tag, tag));
    const int64_t bytes = static_cast<int64_t>(sent.back().size());
    ASSERT_TRUE(all[0]->Send(sent.back().data(), bytes, 1, tag % 3).ok());
  }
  for (int message : {2, 1, 0, 4, 5, 3}) {
    std::vector<char> got(sent[message].size());
    const int64_t bytes = static_cast<int64_t>(got.size());
    ASSERT_TRUE(all[1]->Receive(got.data(), bytes, 0, message % 3).ok());
    EXPECT_EQ(got, sent[message]) << message;
  }
}

// More messages than the queue holds and more bytes than the ring: the rest waits at the sender, in
// order. Both ends send before they receive.
TEST(ShmTransport, SendsBeyondTheBufferArriveInOrder) {
  const Transports all = ConnectAll(2, absl::Seconds(30));
  const std::vector<int64_t> sizes{24, 100 << 10, 1 << 20};
  constexpr int kMessages = 5000;
  const auto size_of = [&](int i) { return i % 100 == 0 ? sizes[i / 100 % 3] * 6 : sizes[0]; };
  std::barrier both_have_sent(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      ShmTransport& transport = *all[rank];
      for (int i = 0; i < kMessages; ++i) {
        const std::vector<char> data = Pattern(size_of(i), i + rank);
        ASSERT_TRUE(transport.Send(data.data(), size_of(i), 1 - rank, 1).ok());
      }
      EXPECT_GT(transport.pending_bytes(), 0);
      both_have_sent.arrive_and_wait();
      for (int i = 0; i < kMessages; ++i) {
        std::vector<char> got(static_cast<size_t>(size_of(i)));
        absl::Status s = transport.Receive(got.data(), size_of(i), 1 - rank, 1);
        ASSERT_TRUE(s.ok()) << s;
        ASSERT_EQ(got, Pattern(size_of(i), i + 1 - rank)) << i;
      }
      ASSERT_TRUE(transport.Drain(0).ok());
      EXPECT_EQ(transport.pending_bytes(), 0);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(ShmTransport, RingBufferWrapsAround) {
  const Transports all = ConnectAll(2);
  // Never empty, so that the ring wraps: 40 MiB in flight, 800 MiB in all.
  constexpr int64_t kBytes = 20 << 20;
  std::vector<char> got(kBytes);
  ASSERT_TRUE(all[0]->Send(Pattern(kBytes, 0).data(), kBytes, 1, 1).ok());
  for (int i = 1; i < 40; ++i) {
    ASSERT_TRUE(all[0]->Send(Pattern(kBytes, i).data(), kBytes, 1, 1).ok());
    EXPECT_EQ(all[0]->pending_bytes(), 0);
    ASSERT_TRUE(all[1]->Receive(got.data(), kBytes, 0, 1).ok());
    ASSERT_EQ(got, Pattern(kBytes, i - 1)) << i;
  }
}

TEST(ShmTransport, FastRankWaitsAtTheEndOfItsNextStep) {
  const Transports all = ConnectAll(2, absl::Milliseconds(300));
  ASSERT_TRUE(all[0]->Send("one", 3, 1, 1).ok());
  EXPECT_TRUE(all[0]->EndStep().ok());
  ASSERT_TRUE(all[0]->Send("two", 3, 1, 1).ok());
  EXPECT_TRUE(absl::IsDeadlineExceeded(all[0]->EndStep()));
  char got[3];
  ASSERT_TRUE(all[1]->Receive(got, 3, 0, 1).ok());
  EXPECT_TRUE(all[0]->EndStep().ok());
}

TEST(ShmTransport, MessagesOfADeadPeerAreReadBeforeTheError) {
  // The peer is a process that exits silently.
  std::unique_ptr<RendezvousStore> store = NewInProcessStore();
  int sockets[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets), 0);
  auto memory = ShmChannel::NewMemory();
  ASSERT_TRUE(memory.ok());
  const pid_t child = fork();
  if (child == 0) {
    close(sockets[0]);
    auto channel = ShmChannel::Map(*memory, sockets[1], 1);
    _exit(channel.ok() && (*channel)->Push(5, "last words", 10, 0) == 10 ? 0 : 1);
  }
  close(sockets[1]);
  auto channel = ShmChannel::Map(*memory, sockets[0], 0);
  ASSERT_TRUE(channel.ok()) << channel.status();
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  EXPECT_TRUE((*channel)->PeerIsGone());
  auto next = (*channel)->Next();
  ASSERT_TRUE(next.ok() && next->has_value());
  EXPECT_EQ((*next)->tag, 5u);
  std::string words(10, ' ');
  auto read = (*channel)->Pop(words.data(), 10, 0);
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(words, "last words");
}

TEST(ShmTransport, ReceiveFromADeadPeerIsUnavailable) {
  Transports all = ConnectAll(3);
  ASSERT_TRUE(all[2]->Send("bye", 3, 0, 1).ok());
  all[2].reset();
  char got[3];
  EXPECT_TRUE(all[0]->Receive(got, 3, 2, 1).ok());
  const absl::Time start = absl::Now();
  const absl::Status s = all[0]->Receive(got, 3, 2, 1);
  EXPECT_TRUE(absl::IsUnavailable(s)) << s;
  EXPECT_NE(std::string(s.message()).find("rank 2"), std::string::npos) << s;
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
}

TEST(ShmTransport, MessageOfWrongSizeIsAnErrorWithBothSizes) {
  const Transports all = ConnectAll(2);
  ASSERT_TRUE(all[0]->Send("12345", 5, 1, 1).ok());
  char got[4];
  const absl::Status s = all[1]->Receive(got, 4, 0, 1);
  EXPECT_TRUE(absl::IsInternal(s)) << s;
  EXPECT_NE(std::string(s.message()).find("sent 5 bytes where 4"), std::string::npos) << s;
}

TEST(ShmChannel, MemoryThatCouldShrinkIsRefused) {
  std::string path = testing::TempDir() + "/shared-channel-XXXXXX";
  const int file = mkstemp(path.data());
  ASSERT_GE(file, 0);
  unlink(path.c_str());
  const auto channel = ShmChannel::Map(file, dup(file), 0);
  EXPECT_TRUE(absl::IsInvalidArgument(channel.status())) << channel.status();
}

}  // namespace
}  // namespace espalier
