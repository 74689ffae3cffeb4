#include "worker/collective/network_transport.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace espalier {
namespace {

constexpr absl::Duration kLongestWait = absl::Seconds(1);
constexpr absl::Duration kMeanwhileInterval = absl::Microseconds(200);
// Memory for a message that nobody awaits grows as it arrives.
constexpr int64_t kUnexpectedGrowth = 1 << 20;

Descriptor NewEvent() { return Descriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)); }

}  // namespace

NetworkTransport::NetworkTransport(std::map<int, PeerLink> links, NetworkTransportOptions options)
    : options_(std::move(options)), to_send_(NewEvent()), ended_event_(NewEvent()) {
  for (auto& [rank, link] : links) peers_[rank].link = std::move(link);
  thread_ = std::thread([this] { SendPending(); });
}

NetworkTransport::~NetworkTransport() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  eventfd_write(to_send_.get(), 1);
  thread_.join();
}

void NetworkTransport::End(const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  if (!ended_.ok()) return;
  ended_ = status;
  eventfd_write(ended_event_.get(), 1);
  sent_some_.SignalAll();
}

absl::Status NetworkTransport::Ended() {
  absl::MutexLock lock(&mutex_);
  return ended_;
}

absl::Status NetworkTransport::Failed(const char* what, int peer, const absl::Status& why) {
  const std::string message =
      absl::StrCat("cannot ", what, " ", NameOfRank(peer, peers_.at(peer).link.host), ": ",
                   std::string(why.message()));
  End(absl::IsInternal(why) ? absl::InternalError(message) : absl::UnavailableError(message));
  return Ended();
}

// Sending.

bool NetworkTransport::HasPending(int peer) {
  absl::MutexLock lock(&mutex_);
  return pending_.count(peer) > 0;
}

absl::Status NetworkTransport::Send(const void* data, int64_t bytes, int peer, uint64_t tag) {
  if (absl::Status s = Ended(); !s.ok()) return s;
  const auto has_room = [this, bytes]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return pending_.empty() || buffered_ + bytes <= options_.max_buffered_bytes;
  };
  if (absl::Status s = WaitForSends(has_room); !s.ok()) return s;
  const char* from = static_cast<const char*>(data);
  int64_t done = 0;
  if (!HasPending(peer)) {
    Peer& to = peers_.at(peer);
    absl::StatusOr<int64_t> pushed = to.writer.Push(*to.link.out, tag, from, bytes, 0);
    if (!pushed.ok()) return Failed("send to", peer, pushed.status());
    done = *pushed;
    if (done == bytes) return absl::OkStatus();
  }
  PendingSend pending{tag, bytes, nullptr, done, 0};
  {
    absl::MutexLock lock(&mutex_);
    pending.data = TakeMemory(bytes);
  }
  std::memcpy(pending.data.get() + done, from + done, static_cast<size_t>(bytes - done));
  {
    absl::MutexLock lock(&mutex_);
    pending.step = step_;
    buffered_ += bytes - done;
    pending_[peer].push_back(std::move(pending));
  }
  eventfd_write(to_send_.get(), 1);
  return absl::OkStatus();
}

void NetworkTransport::SendPending() {
  std::vector<pollfd> polled;
  std::vector<int> ranks;
  while (true) {
    polled = {{to_send_.get(), POLLIN, 0}};
    ranks.clear();
    {
      absl::MutexLock lock(&mutex_);
      if (stopping_ || !ended_.ok()) return;
      for (const auto& [peer, queue] : pending_) {
        polled.push_back({peers_.at(peer).link.out->socket(), POLLOUT, 0});
        ranks.push_back(peer);
      }
    }
    poll(polled.data(), polled.size(), -1);
    if (polled[0].revents != 0) {
      eventfd_t count = 0;
      eventfd_read(to_send_.get(), &count);
    }
    for (size_t i = 0; i < ranks.size(); ++i) {
      if (polled[i + 1].revents != 0) Continue(ranks[i]);
    }
  }
}

void NetworkTransport::Continue(int peer) {
  Peer& to = peers_.at(peer);
  PendingSend* first = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    first = &pending_.at(peer).front();
  }
  // Only this thread takes messages out of the queue, and others do not move them.
  absl::StatusOr<int64_t> done =
      to.writer.Push(*to.link.out, first->tag, first->data.get(), first->bytes, first->done);
  if (!done.ok()) {
    Failed("send to", peer, done.status()).IgnoreError();  // the next call says so
    return;
  }
  absl::MutexLock lock(&mutex_);
  buffered_ -= *done - first->done;
  sent_ += *done - first->done;
  first->done = *done;
  if (first->done == first->bytes) {
    ReleaseMemory(std::move(first->data), first->bytes);
    std::deque<PendingSend>& queue = pending_.at(peer);
    queue.pop_front();
    if (queue.empty()) pending_.erase(peer);
  }
  sent_some_.SignalAll();
}

absl::Status NetworkTransport::WaitForSends(absl::FunctionRef<bool()> done) {
  absl::Time deadline = absl::InfiniteFuture();
  int64_t seen = -1;
  bool busy = false;
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      if (!ended_.ok()) return ended_;
      if (done()) return absl::OkStatus();
      const absl::Time now = absl::Now();
      if (sent_ != seen) deadline = now + options_.timeout;
      seen = sent_;
      if (now >= deadline) {
        const int peer = pending_.begin()->first;
        return absl::DeadlineExceededError(absl::StrCat(NameOfRank(peer, peers_.at(peer).link.host),
                                                        " has taken nothing of a message for ",
                                                        absl::FormatDuration(options_.timeout)));
      }
      sent_some_.WaitWithTimeout(
          &mutex_, std::min(deadline - now, busy ? kMeanwhileInterval : kLongestWait));
    }
    busy = options_.meanwhile();
  }
}

absl::Status NetworkTransport::Flush() {
  return WaitForSends([this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return pending_.empty(); });
}

absl::Status NetworkTransport::EndStep() {
  absl::Status done = WaitForSends([this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return std::all_of(pending_.begin(), pending_.end(),
                       [this](const auto& entry) ABSL_NO_THREAD_SAFETY_ANALYSIS {
                         return entry.second.front().step >= step_;
                       });
  });
  absl::MutexLock lock(&mutex_);
  ++step_;
  return done;
}

// Receiving.

absl::Status NetworkTransport::WaitToRead(int peer, absl::Time deadline) {
  const absl::Time now = absl::Now();
  if (now >= deadline) {
    return absl::DeadlineExceededError(absl::StrCat(NameOfRank(peer, peers_.at(peer).link.host),
                                                    " said nothing for ",
                                                    absl::FormatDuration(options_.timeout)));
  }
  const absl::Duration most = options_.meanwhile() ? kMeanwhileInterval : kLongestWait;
  pollfd polled[] = {{peers_.at(peer).link.in->socket(), POLLIN, 0},
                     {ended_event_.get(), POLLIN, 0}};
  const timespec wait = absl::ToTimespec(std::min(deadline - now, most));
  ppoll(polled, 2, &wait, nullptr);
  return polled[1].revents == 0 ? absl::OkStatus() : Ended();
}

absl::Status NetworkTransport::Receive(void* data, int64_t bytes, int peer, uint64_t tag) {
  if (absl::Status s = Ended(); !s.ok()) return s;
  Peer& from = peers_.at(peer);
  const auto wrong_size = [&](int64_t sent) {
    return Failed("receive from", peer,
                  absl::InternalError(
                      absl::StrCat("it sent ", sent, " bytes where ", bytes, " were expected")));
  };
  if (const auto message = from.early.Take(tag); message.has_value()) {
    const auto size = static_cast<int64_t>(message->size());
    if (size != bytes) return wrong_size(size);
    std::memcpy(data, message->data(), message->size());
    return absl::OkStatus();
  }
  absl::Time deadline = absl::Now() + options_.timeout;
  int64_t done = 0;         // bytes read of the present message
  std::vector<char> other;  // the present message, if its tag differs
  while (true) {
    auto next = from.reader.Next(*from.link.in);
    if (!next.ok()) return Failed("receive from", peer, next.status());
    if (!next->has_value()) {
      if (absl::Status s = WaitToRead(peer, deadline); !s.ok()) return s;
      continue;
    }
    const MessageReader::Message message = **next;
    const bool is_it = message.tag == tag;
    if (is_it && message.bytes != bytes) return wrong_size(message.bytes);
    int64_t room = message.bytes;
    if (!is_it) {
      room = std::min(message.bytes, done + kUnexpectedGrowth);
      other.resize(static_cast<size_t>(room));
    }
    absl::StatusOr<int64_t> read =
        from.reader.Pop(*from.link.in, is_it ? static_cast<char*>(data) : other.data(), room, done);
    if (!read.ok()) return Failed("receive from", peer, read.status());
    if (*read > done) {
      deadline = absl::Now() + options_.timeout;
    } else if (absl::Status s = WaitToRead(peer, deadline); !s.ok()) {
      return s;
    }
    done = *read;
    if (done < message.bytes) continue;
    if (is_it) return absl::OkStatus();
    from.early.Keep(message.tag, std::move(other));
    other.clear();
    done = 0;
  }
}

// Memory.

std::unique_ptr<char[]> NetworkTransport::TakeMemory(int64_t bytes) {
  auto found = free_.find(bytes);
  if (found == free_.end()) return std::unique_ptr<char[]>(new char[static_cast<size_t>(bytes)]);
  std::unique_ptr<char[]> memory = std::move(found->second.back());
  found->second.pop_back();
  if (found->second.empty()) free_.erase(found);
  free_bytes_ -= bytes;
  return memory;
}

void NetworkTransport::ReleaseMemory(std::unique_ptr<char[]> memory, int64_t bytes) {
  if (bytes > options_.max_buffered_bytes) return;
  // Frees buffers of sizes no longer sent.
  while (!free_.empty() && free_bytes_ + bytes > options_.max_buffered_bytes) {
    auto other = free_.begin();
    free_bytes_ -= other->first;
    other->second.pop_back();
    if (other->second.empty()) free_.erase(other);
  }
  free_[bytes].push_back(std::move(memory));
  free_bytes_ += bytes;
}

}  // namespace espalier
