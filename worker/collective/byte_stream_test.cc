// What passes between two ranks is encrypted, whole, and only for the one that was expected.
#include "worker/collective/byte_stream.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "worker/collective/message_stream.h"
#include "worker/collective/tls_stream.h"

namespace espalier {
namespace {

struct Sockets {
  Sockets() {
    int ends[2] = {-1, -1};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
    a = Descriptor(ends[0]);
    b = Descriptor(ends[1]);
  }
  Descriptor a, b;
};

void WaitFor(int socket, short events) {
  pollfd polled{socket, events, 0};
  poll(&polled, 1, 5000);
}

absl::Status Meet(ByteStream& stream) {
  while (true) {
    absl::StatusOr<short> needed = stream.Handshake();
    if (!needed.ok()) return needed.status();
    if (*needed == 0) return absl::OkStatus();
    WaitFor(stream.socket(), *needed);
  }
}

absl::Status WriteAll(ByteStream& stream, const std::string& text) {
  MessageWriter writer;
  const auto bytes = static_cast<int64_t>(text.size());
  for (int64_t done = 0; done < bytes;) {
    absl::StatusOr<int64_t> pushed = writer.Push(stream, 7, text.data(), bytes, done);
    if (!pushed.ok()) return pushed.status();
    done = *pushed;
    if (done < bytes) WaitFor(stream.socket(), POLLOUT);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadMessage(ByteStream& stream) {
  MessageReader reader;
  while (true) {
    auto next = reader.Next(stream);
    if (!next.ok()) return next.status();
    if (next->has_value()) {
      EXPECT_EQ((*next)->tag, 7u);
      std::string text(static_cast<size_t>((*next)->bytes), '\0');
      for (int64_t done = 0; done < (*next)->bytes;) {
        absl::StatusOr<int64_t> popped = reader.Pop(stream, text.data(), (*next)->bytes, done);
        if (!popped.ok()) return popped.status();
        if (*popped == done) WaitFor(stream.socket(), POLLIN);
        done = *popped;
      }
      return text;
    }
    WaitFor(stream.socket(), POLLIN);
  }
}

std::string Pattern(size_t bytes) {
  std::string text;
  while (text.size() < bytes) text += "tensors of rank 1 | ";
  text.resize(bytes);
  return text;
}

// A network between two sockets that records what passes, and may change a byte of it.
class Relay {
 public:
  Relay(Descriptor from, Descriptor to, int64_t change_at = -1)
      : from_(std::move(from)), to_(std::move(to)) {
    thread_ = std::thread([this, change_at] {
      std::vector<pollfd> polled = {{from_.get(), POLLIN, 0}, {to_.get(), POLLIN, 0}};
      std::vector<char> bytes(1 << 16);
      while (true) {
        poll(polled.data(), 2, -1);
        for (const bool forward : {true, false}) {
          if (polled[forward ? 0 : 1].revents == 0) continue;
          const ssize_t got =
              recv(forward ? from_.get() : to_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
          if (got <= 0) return;
          if (forward) {
            const int64_t at = change_at - static_cast<int64_t>(passed_.size());
            if (change_at >= 0 && at >= 0 && at < got) bytes[static_cast<size_t>(at)] ^= 1;
            passed_.append(bytes.data(), static_cast<size_t>(got));
          }
          for (ssize_t sent = 0; sent < got;) {
            const ssize_t more = send(forward ? to_.get() : from_.get(), bytes.data() + sent,
                                      static_cast<size_t>(got - sent), MSG_NOSIGNAL);
            if (more > 0) sent += more;
            if (more < 0 && errno != EAGAIN) return;
          }
        }
      }
    });
  }
  // Both ends must be closed, or broken.
  const std::string& Passed() {
    if (thread_.joinable()) thread_.join();
    return passed_;
  }
  ~Relay() { Passed(); }

 private:
  Descriptor from_, to_;
  std::string passed_;
  std::thread thread_;
};

struct Ends {
  absl::Status connected, accepted;
  std::unique_ptr<ByteStream> out, in;
};

Ends MeetOver(Descriptor a, Descriptor b, const TlsIdentity& first, const TlsIdentity& second,
              const std::string& expected_of_second) {
  Ends ends;
  ends.out = first.Connect(std::move(a), {expected_of_second});
  ends.in = second.Accept(std::move(b), {first.fingerprint()});
  std::thread accepting([&] { ends.accepted = Meet(*ends.in); });
  ends.connected = Meet(*ends.out);
  if (!ends.connected.ok()) shutdown(ends.out->socket(), SHUT_RDWR);
  accepting.join();
  return ends;
}

TEST(ByteStream, TlsCarriesLongMessagesAndChangesItsKeyOnTheWay) {
  auto first = TlsIdentity::Make(/*records_per_key=*/5), second = TlsIdentity::Make();
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_NE((*first)->fingerprint(), (*second)->fingerprint());
  Sockets sockets;
  Ends ends = MeetOver(std::move(sockets.a), std::move(sockets.b), **first, **second,
                       (*second)->fingerprint());
  ASSERT_TRUE(ends.connected.ok()) << ends.connected;
  ASSERT_TRUE(ends.accepted.ok()) << ends.accepted;
  EXPECT_EQ(ends.in->peer_fingerprint(), (*first)->fingerprint());
  EXPECT_EQ(ends.out->peer_fingerprint(), (*second)->fingerprint());
  for (const size_t bytes : {size_t{1}, size_t{16368}, size_t{16369}, size_t{3'000'001}}) {
    const std::string sent = Pattern(bytes);
    std::thread writing([&] { EXPECT_TRUE(WriteAll(*ends.out, sent).ok()); });
    absl::StatusOr<std::string> got = ReadMessage(*ends.in);
    writing.join();
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_TRUE(*got == sent) << bytes;
  }
  ends.out.reset();
  EXPECT_TRUE(absl::IsOutOfRange(ReadMessage(*ends.in).status()));
}

// And the recorder can see it in clear.
TEST(ByteStream, OnlyTlsHidesWhatPasses) {
  const std::string sent = Pattern(100'000), part = sent.substr(0, 60);
  for (const bool encrypted : {true, false}) {
    Sockets near, far;
    Relay relay(std::move(near.b), std::move(far.a));
    auto first = TlsIdentity::Make(), second = TlsIdentity::Make();
    ASSERT_TRUE(first.ok() && second.ok());
    Ends ends;
    if (encrypted) {
      ends = MeetOver(std::move(near.a), std::move(far.b), **first, **second,
                      (*second)->fingerprint());
      ASSERT_TRUE(ends.connected.ok() && ends.accepted.ok());
    } else {
      ends.out = NewPlainStream(std::move(near.a));
      ends.in = NewPlainStream(std::move(far.b));
    }
    std::thread writing([&] { EXPECT_TRUE(WriteAll(*ends.out, sent).ok()); });
    absl::StatusOr<std::string> got = ReadMessage(*ends.in);
    writing.join();
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_TRUE(*got == sent);
    ends.out.reset();
    ends.in.reset();
    EXPECT_GT(relay.Passed().size(), sent.size());
    EXPECT_EQ(relay.Passed().find(part) == std::string::npos, encrypted);
  }
}

TEST(ByteStream, AChangedByteIsAnError) {
  Sockets near, far;
  Relay relay(std::move(near.b), std::move(far.a), /*change_at=*/50'000);
  auto first = TlsIdentity::Make(), second = TlsIdentity::Make();
  ASSERT_TRUE(first.ok() && second.ok());
  Ends ends =
      MeetOver(std::move(near.a), std::move(far.b), **first, **second, (*second)->fingerprint());
  ASSERT_TRUE(ends.connected.ok() && ends.accepted.ok());
  std::thread writing([&] { WriteAll(*ends.out, Pattern(100'000)).IgnoreError(); });
  const absl::Status got = ReadMessage(*ends.in).status();
  EXPECT_TRUE(absl::IsUnavailable(got)) << got;
  writing.join();
  ends.out.reset();
  ends.in.reset();
}

TEST(ByteStream, ACertificateThatWasNotExpectedIsRefusedByBothEnds) {
  auto first = TlsIdentity::Make(), second = TlsIdentity::Make(), third = TlsIdentity::Make();
  ASSERT_TRUE(first.ok() && second.ok() && third.ok());
  Sockets sockets;
  const Ends ends = MeetOver(std::move(sockets.a), std::move(sockets.b), **first, **second,
                             (*third)->fingerprint());
  EXPECT_TRUE(absl::IsUnauthenticated(ends.connected)) << ends.connected;
  EXPECT_FALSE(ends.accepted.ok());
  Sockets others;
  Ends stranger;
  stranger.out = (*third)->Connect(std::move(others.a), {(*second)->fingerprint()});
  stranger.in = (*second)->Accept(std::move(others.b), {(*first)->fingerprint()});
  std::thread accepting([&] { stranger.accepted = Meet(*stranger.in); });
  Meet(*stranger.out).IgnoreError();  // TLS lets it believe that it is connected,
  accepting.join();
  EXPECT_TRUE(absl::IsUnauthenticated(stranger.accepted)) << stranger.accepted;
  EXPECT_FALSE(ReadMessage(*stranger.out).ok());  // but it gets nothing
}

TEST(MessageStream, ALengthThatNoMessageHasIsRefused) {
  for (const char first : {'\0', '\x7f'}) {
    Sockets sockets;
    std::string header(kMessageHeaderBytes, '\0');
    header[8] = first;
    ASSERT_EQ(send(sockets.a.get(), header.data(), header.size(), 0), kMessageHeaderBytes);
    const std::unique_ptr<ByteStream> in = NewPlainStream(std::move(sockets.b));
    EXPECT_TRUE(absl::IsInternal(ReadMessage(*in).status()));
  }
}

}  // namespace
}  // namespace espalier
