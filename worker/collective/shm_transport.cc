#include "worker/collective/shm_transport.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "worker/collective/shm_rendezvous.h"

namespace espalier {
namespace {

// Longest sleep before checking that the peer lives and that other peers have space for pending
// sends.
constexpr absl::Duration kMaxSleep = absl::Milliseconds(50);
constexpr absl::Duration kMaxSleepWithPendingSends = absl::Microseconds(200);
// Used if the host has a core per rank: waking an idle core of a virtual machine takes up to 0.1
// ms, as long as many operators run.
constexpr absl::Duration kSpinTime = absl::Milliseconds(1);

absl::Status Gone(int peer) {
  return absl::UnavailableError(absl::StrCat("rank ", peer, " is gone"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ShmTransport>> ShmTransport::Connect(
    int rank, int size, RendezvousStore& store, absl::Duration rendezvous_timeout,
    absl::Duration timeout) {
  auto channels = ConnectShmChannels(rank, size, store, rendezvous_timeout);
  if (!channels.ok()) return channels.status();
  std::unique_ptr<ShmTransport> all(new ShmTransport(size, timeout));
  all->channels_ = *std::move(channels);
  const auto ranks = 1 + std::count_if(all->channels_.begin(), all->channels_.end(),
                                       [](const auto& channel) { return channel != nullptr; });
  if (ranks <= static_cast<int64_t>(std::thread::hardware_concurrency()))
    all->spin_time_ = kSpinTime;
  return all;
}

bool ShmTransport::FlushSends() {
  if (pending_bytes_ == 0) return false;
  for (size_t p = 0; p < peers_.size(); ++p) {
    std::deque<Copy>& pending = peers_[p].pending;
    while (!pending.empty()) {
      Copy& copy = pending.front();
      const int64_t bytes = static_cast<int64_t>(copy.data.size());
      const int64_t done = channels_[p]->Push(copy.tag, copy.data.data(), bytes, copy.done);
      pending_bytes_ -= done - copy.done;
      copy.done = done;
      if (done < bytes) break;
      pending.pop_front();
    }
  }
  return pending_bytes_ > 0;
}

absl::Status ShmTransport::Send(const void* data, int64_t bytes, int peer, uint64_t tag) {
  FlushSends();
  const char* from = static_cast<const char*>(data);
  int64_t done = 0;
  if (peers_[peer].pending.empty()) done = channels_[peer]->Push(tag, from, bytes, 0);
  if (done < bytes) {
    // Copies the whole message: `done` counts from its beginning.
    peers_[peer].pending.push_back({tag, std::vector<char>(from, from + bytes), done});
    pending_bytes_ += bytes - done;
  }
  return absl::OkStatus();
}

absl::Status ShmTransport::WaitFor(int peer, absl::Time deadline, bool* is_gone) {
  const absl::Time now = absl::Now();
  if (now > deadline) {
    return absl::DeadlineExceededError(
        absl::StrCat("rank ", peer, " said nothing for ", absl::FormatDuration(timeout_)));
  }
  const absl::Duration most = pending_bytes_ > 0 ? kMaxSleepWithPendingSends : kMaxSleep;
  if (!aborted_ && channels_[peer]->Wait(std::min(deadline - now, most), spin_time_)) {
    *is_gone = channels_[peer]->PeerIsGone();
  }
  if (!aborted_) return absl::OkStatus();
  absl::MutexLock lock(&mutex_);
  return absl::CancelledError(reason_);
}

absl::Status ShmTransport::Receive(void* data, int64_t bytes, int peer, uint64_t tag) {
  ShmChannel& channel = *channels_[peer];
  char* to = static_cast<char*>(data);
  const auto wrong_size = [&](int64_t sent) {
    return absl::InternalError(
        absl::StrCat("rank ", peer, " sent ", sent, " bytes where ", bytes, " were expected"));
  };
  if (const auto message = peers_[peer].early.Take(tag); message.has_value()) {
    const auto size = static_cast<int64_t>(message->size());
    if (size != bytes) return wrong_size(size);
    std::memcpy(to, message->data(), message->size());
    return absl::OkStatus();
  }
  absl::Time deadline = absl::Now() + timeout_;
  int64_t done = 0;         // bytes read of the current message
  std::vector<char> other;  // the current message, if its tag differs
  bool is_gone = false;
  while (true) {
    FlushSends();
    absl::StatusOr<std::optional<ShmChannel::Message>> next = channel.Next();
    if (!next.ok()) return next.status();
    if (!next->has_value()) {
      // Check once more: this may be its last message.
      if (is_gone) return Gone(peer);
      if (absl::Status s = WaitFor(peer, deadline, &is_gone); !s.ok()) return s;
      continue;
    }
    const ShmChannel::Message message = **next;
    const bool is_it = message.tag == tag;
    if (is_it && message.bytes != bytes) return wrong_size(message.bytes);
    if (!is_it && done == 0) other.resize(static_cast<size_t>(message.bytes));
    if (!is_it && static_cast<int64_t>(other.size()) != message.bytes) {
      return wrong_size(message.bytes);
    }
    absl::StatusOr<int64_t> read =
        is_it ? channel.Pop(to, bytes, done) : channel.Pop(other.data(), message.bytes, done);
    if (!read.ok()) return read.status();
    done = *read;
    deadline = absl::Now() + timeout_;
    if (done < message.bytes) continue;
    if (is_it) return absl::OkStatus();
    peers_[peer].early.Keep(message.tag, std::move(other));
    other.clear();
    done = 0;
  }
}

absl::Status ShmTransport::Drain(int64_t max_pending_bytes) {
  absl::Time deadline = absl::Now() + timeout_;
  int64_t before = pending_bytes_;
  while (FlushSends() && pending_bytes_ > max_pending_bytes) {
    const auto waits = [](const Peer& peer) { return !peer.pending.empty(); };
    const int peer =
        static_cast<int>(std::find_if(peers_.begin(), peers_.end(), waits) - peers_.begin());
    if (pending_bytes_ < before) deadline = absl::Now() + timeout_;
    before = pending_bytes_;
    bool is_gone = false;
    if (absl::Status s = WaitFor(peer, deadline, &is_gone); !s.ok()) return s;
    // Try once more: it may have made space before it went.
    if (is_gone) FlushSends();
    if (is_gone && waits(peers_[static_cast<size_t>(peer)])) return Gone(peer);
  }
  return absl::OkStatus();
}

absl::Status ShmTransport::EndStep() {
  for (size_t p = 0; p < peers_.size(); ++p) {
    if (channels_[p] == nullptr) continue;
    const absl::Time deadline = absl::Now() + timeout_;
    bool is_gone = false;
    while (channels_[p]->popped() < peers_[p].pushed_last_step) {
      FlushSends();
      if (is_gone) return Gone(static_cast<int>(p));
      if (absl::Status s = WaitFor(static_cast<int>(p), deadline, &is_gone); !s.ok()) return s;
    }
    peers_[p].pushed_last_step = channels_[p]->pushed();
  }
  FlushSends();
  return absl::OkStatus();
}

void ShmTransport::Abort(const std::string& reason) {
  {
    absl::MutexLock lock(&mutex_);
    if (!aborted_) reason_ = reason;
    aborted_ = true;
  }
  for (const auto& channel : channels_) {
    if (channel != nullptr) channel->Wake();
  }
}

}  // namespace espalier
