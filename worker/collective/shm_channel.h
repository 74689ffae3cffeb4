// Messages between two ranks of one host, through memory that both have mapped.
//
// The sender copies a message into that memory, the receiver out of it; nobody else takes part. So
// a message costs its two copies, on the threads that send and receive it, whatever else the host's
// cores do. Through a socket a third thread moves the bytes, and waits for a core where all of them
// compute (docs/benchmarks).
//
// Each direction is a queue of parts (parts: at most 256 KiB of a message, so that the receiver
// copies one while the sender writes the next) and an area that the sender gives out round and
// round, and from its start whenever the receiver has read everything: no more of it is touched
// than was ever under way. A rank that finds nothing looks for a while, and then sleeps on a futex
// until the other one rings.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace espalier {

// One end. Used by one thread; Wake by any.
class ShmChannel {
 public:
  // A file of zeros that Map takes, which lives in memory and can no longer change its size.
  static absl::StatusOr<int> NewMemory();
  // `memory`: both ends' descriptor of one such file. `socket`: a connection of the two ends, by
  // which one learns that the other is gone. Takes both, also when it fails. `side`: 0 or 1, the
  // other end has the other one. InvalidArgument if `memory` is no such file.
  static absl::StatusOr<std::unique_ptr<ShmChannel>> Map(int memory, int socket, int side);
  ~ShmChannel();
  ShmChannel(const ShmChannel&) = delete;
  ShmChannel& operator=(const ShmChannel&) = delete;

  // Goes on with a message of which `done` bytes have been taken: returns how many are now, less
  // than `bytes` (at least 1) if there is no room. The next message begins when all are.
  int64_t Push(uint64_t tag, const char* data, int64_t bytes, int64_t done);

  struct Message {
    uint64_t tag = 0;
    int64_t bytes = 0;
  };
  // The message that comes next, or that is being read; nothing while none has come. Internal if
  // the other end wrote what no end writes.
  absl::StatusOr<std::optional<Message>> Next();
  // The next part of it, which follows the `done` bytes that were read; returns how many bytes have
  // been read now, `done` if no more are there yet. `message` has `bytes` bytes; Internal if more
  // came.
  absl::StatusOr<int64_t> Pop(char* message, int64_t bytes, int64_t done);

  // Until there is more to read, or room, or Wake is called, or the time is over; may come back
  // early. Whether it was the time. At first it looks again and again, for `spin_time`.
  bool Wait(absl::Duration most, absl::Duration spin_time);
  void Wake();
  // What the other end has sent before can still be read.
  bool PeerIsGone() const;

  // How many parts this end has pushed so far, and the other end has popped.
  uint64_t pushed() const { return written_; }
  uint64_t popped() const;

 private:
  static constexpr uint64_t kParts = 4096;
  struct Shared;
  ShmChannel(Shared* shared, int socket, int side);

  // Where `bytes` of the area are free; -1 if nowhere.
  int64_t Place(int64_t bytes);
  bool Changed() const;
  void Look();
  void Ring(int end);

  Shared* const shared_;
  const int socket_;
  const int side_;
  // Of what this end sends: the queue's length so far, and where each part lies. Not read back from
  // where the other end could change it.
  uint64_t written_ = 0;
  std::array<int64_t, kParts> offsets_{};
  int64_t fill_ = 0;  // behind the last part
  bool starved_ = false;
  uint64_t read_ = 0;
  // When this end last looked: what had been written for it, and what of its own had been read.
  uint64_t seen_written_ = 0, seen_read_ = 0;
};

}  // namespace espalier
