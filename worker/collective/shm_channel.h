// Message channel between two ranks of one host, in memory that both map.
//
// The sender copies a message into the shared memory and the receiver copies it out; no other
// thread takes part. A message costs two copies, on the threads that use it, whatever other cores
// do. With a socket the kernel's thread moves the bytes and competes for a core where all of them
// compute (docs/design/collectives.md).
//
// Each direction has a queue of parts (at most 256 KiB of a message each, so that copying in and
// out overlap) and a ring buffer. The sender restarts at the buffer's beginning whenever the
// receiver has read everything, so only as many pages are touched as were ever in flight. An idle
// end spins for a while, then sleeps on a futex until the other end signals it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace espalier {

// One end of a channel. Not thread-safe, except Wake.
class ShmChannel {
 public:
  // Returns the descriptor of a zeroed in-memory file, sealed against changes of its size, for Map.
  static absl::StatusOr<int> NewMemory();
  // `memory` is a descriptor of one such file for both ends. `socket` connects the ends, to detect
  // that the peer is gone. Takes ownership of both, also on failure. `side` is 0 at one end, 1 at
  // the other. Returns InvalidArgument if `memory` is no such file.
  static absl::StatusOr<std::unique_ptr<ShmChannel>> Map(int memory, int socket, int side);
  ~ShmChannel();
  ShmChannel(const ShmChannel&) = delete;
  ShmChannel& operator=(const ShmChannel&) = delete;

  // Continues a message of which `done` bytes are sent. Returns the new count, less than `bytes`
  // (at least 1) if space ran out. The next message starts when all are sent.
  int64_t Push(uint64_t tag, const char* data, int64_t bytes, int64_t done);

  struct Message {
    uint64_t tag = 0;
    int64_t bytes = 0;
  };
  // Returns the next message, or the one being read; nullopt if none has arrived. Returns Internal
  // if the peer wrote invalid data.
  absl::StatusOr<std::optional<Message>> Next();
  // Reads the next part of the message after `done` bytes; returns the new count, `done` if no more
  // have arrived. `message` has `bytes` bytes; returns Internal if more arrive.
  absl::StatusOr<int64_t> Pop(char* message, int64_t bytes, int64_t done);

  // Waits until there is more to read or more space, Wake is called, or `most` is over; may return
  // early. Returns true on timeout. Spins for `spin_time` first.
  bool Wait(absl::Duration most, absl::Duration spin_time);
  void Wake();
  // True if the peer is gone. Messages that it sent can still be read.
  bool PeerIsGone() const;

  // Parts that this end has pushed, and that the peer has popped, so far.
  uint64_t pushed() const { return written_; }
  uint64_t popped() const;

 private:
  static constexpr uint64_t kParts = 4096;
  struct Shared;
  ShmChannel(Shared* shared, int socket, int side);

  // Returns the offset of `bytes` free bytes of the ring buffer, or -1.
  int64_t Place(int64_t bytes);
  bool Changed() const;
  void UpdateSeen();
  void Signal(int end);

  Shared* const shared_;
  const int socket_;
  const int side_;
  // Sending side: parts queued so far and their offsets. Never read back from shared memory, which
  // the peer could change.
  uint64_t written_ = 0;
  std::array<int64_t, kParts> offsets_{};
  int64_t fill_ = 0;  // end of the last part
  bool needs_space_ = false;
  uint64_t read_ = 0;
  // Counters at the last check: parts written by the peer, and parts of this end that it had read.
  uint64_t seen_written_ = 0, seen_read_ = 0;
};

}  // namespace espalier
