#include "worker/collective/shm_channel.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <new>
#include <thread>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace espalier {
namespace {

constexpr int64_t kPartBytes = 256 << 10;  // stays in cache between the copies
constexpr int64_t kRingBytes = 256 << 20;  // only touched pages take memory
constexpr int64_t kLine = 64;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;

absl::Status ChannelError(const char* what) {
  return absl::UnavailableError(
      absl::StrCat("memory shared between ranks of a host: ", what, ": ", std::strerror(errno)));
}

struct Part {
  uint64_t tag;
  int64_t message_bytes;
  int64_t offset;  // in the ring buffer
  int64_t bytes;
};

}  // namespace

// Counters never wrap. Each is written by one end only.
struct ShmChannel::Shared {
  struct Direction {
    alignas(kLine) std::atomic<uint64_t> written;  // parts, by the sender
    std::atomic<uint32_t> needs_space;             // by the sender: waits for space
    alignas(kLine) std::atomic<uint64_t> read;     // by the receiver
    alignas(kLine) Part parts[kParts];
  };
  struct Futex {
    alignas(kLine) std::atomic<uint32_t> rung;
    std::atomic<uint32_t> asleep;
  };
  Direction directions[2];  // by the side that sends
  Futex futexes[2];         // by the side that waits
  alignas(4096) char rings[2][kRingBytes];
};

static_assert(std::atomic<uint64_t>::is_always_lock_free);

absl::StatusOr<int> ShmChannel::NewMemory() {
  const int file = memfd_create("espalier-ranks", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (file < 0) return ChannelError("memfd_create");
  if (ftruncate(file, sizeof(Shared)) != 0 || fcntl(file, F_ADD_SEALS, kSeals) != 0) {
    absl::Status s = ChannelError("ftruncate, sealing");
    close(file);
    return s;
  }
  return file;
}

absl::StatusOr<std::unique_ptr<ShmChannel>> ShmChannel::Map(int memory, int socket, int side) {
  // A shrinking file would kill its readers (SIGBUS).
  struct stat info {};
  const int seals = fcntl(memory, F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals || fstat(memory, &info) != 0 ||
      info.st_size != static_cast<off_t>(sizeof(Shared))) {
    close(memory);
    close(socket);
    return absl::InvalidArgumentError(
        absl::StrCat("a peer's memory has ", info.st_size, " bytes and seals ", seals,
                     "; expected ", sizeof(Shared), " bytes, sealed: are both of one version?"));
  }
  void* mapped = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
  absl::Status s = mapped == MAP_FAILED ? ChannelError("mmap") : absl::OkStatus();
  close(memory);
  if (!s.ok()) {
    close(socket);
    return s;
  }
  // The file starts as zeros, the initial values of all members.
  static_assert(std::is_trivially_destructible_v<Shared>);
  return std::unique_ptr<ShmChannel>(
      new ShmChannel(std::launder(static_cast<Shared*>(mapped)), socket, side));
}

ShmChannel::ShmChannel(Shared* shared, int socket, int side)
    : shared_(shared), socket_(socket), side_(side) {}

ShmChannel::~ShmChannel() {
  close(socket_);
  munmap(shared_, sizeof(Shared));
}

int64_t ShmChannel::Place(int64_t bytes) {
  const uint64_t read = shared_->directions[side_].read.load(std::memory_order_acquire);
  if (read == written_) {
    fill_ = bytes;
    return 0;
  }
  if (written_ - read >= kParts) return -1;  // also if the peer's counter is invalid
  const int64_t oldest = offsets_[read % kParts];
  const bool wrapped = fill_ <= oldest;
  if (fill_ + bytes <= (wrapped ? oldest : kRingBytes)) {
    const int64_t place = fill_;
    fill_ += bytes;
    return place;
  }
  if (wrapped || bytes > oldest) return -1;
  fill_ = bytes;
  return 0;
}

int64_t ShmChannel::Push(uint64_t tag, const char* data, int64_t bytes, int64_t done) {
  Shared::Direction& out = shared_->directions[side_];
  while (done < bytes) {
    const int64_t part = std::min(kPartBytes, bytes - done);
    const int64_t place = Place((part + kLine - 1) / kLine * kLine);
    if (place < 0) {
      if (needs_space_) break;
      // Try again: the peer may have freed space before it could see the flag.
      needs_space_ = true;
      out.needs_space.store(1);
      continue;
    }
    if (needs_space_) out.needs_space.store(0);
    needs_space_ = false;
    std::memcpy(shared_->rings[side_] + place, data + done, static_cast<size_t>(part));
    offsets_[written_ % kParts] = place;
    out.parts[written_ % kParts] = {tag, bytes, place, part};
    // Sequentially consistent: see Wait.
    out.written.store(++written_);
    done += part;
    Signal(1 - side_);
  }
  return done;
}

absl::StatusOr<std::optional<ShmChannel::Message>> ShmChannel::Next() {
  const Shared::Direction& in = shared_->directions[1 - side_];
  if (in.written.load(std::memory_order_acquire) == read_) return std::optional<Message>();
  const Part part = in.parts[read_ % kParts];
  if (part.bytes < 1 || part.bytes > kPartBytes || part.message_bytes < part.bytes ||
      part.offset < 0 || part.offset > kRingBytes - part.bytes) {
    return absl::InternalError(absl::StrCat("a peer of this host says that ", part.bytes, " of ",
                                            part.message_bytes, " bytes lie at ", part.offset));
  }
  return std::optional<Message>({part.tag, part.message_bytes});
}

absl::StatusOr<int64_t> ShmChannel::Pop(char* message, int64_t bytes, int64_t done) {
  Shared::Direction& in = shared_->directions[1 - side_];
  if (in.written.load(std::memory_order_acquire) == read_) return done;
  const Part part = in.parts[read_ % kParts];
  if (part.bytes < 1 || part.bytes > bytes - done || part.offset < 0 ||
      part.offset > kRingBytes - part.bytes) {
    return absl::InternalError(absl::StrCat("a peer of this host sent ", part.bytes,
                                            " bytes more where ", bytes - done, " are missing"));
  }
  std::memcpy(message + done, shared_->rings[1 - side_] + part.offset,
              static_cast<size_t>(part.bytes));
  in.read.store(++read_);
  if (in.needs_space.load() != 0) Signal(1 - side_);
  return done + part.bytes;
}

bool ShmChannel::Changed() const {
  return shared_->directions[1 - side_].written.load() != seen_written_ ||
         shared_->directions[side_].read.load() != seen_read_;
}

// Sequential consistency: either this end sees what the peer wrote after this end announced its
// sleep, or the peer sees the announcement after it has written.
bool ShmChannel::Wait(absl::Duration most, absl::Duration spin_time) {
  if (spin_time > absl::ZeroDuration()) {
    const absl::Time until = absl::Now() + std::min(most, spin_time);
    while (!Changed() && absl::Now() < until) std::this_thread::yield();
    if (Changed()) {
      UpdateSeen();
      return false;
    }
  }
  Shared::Futex& futex = shared_->futexes[side_];
  const uint32_t rung = futex.rung.load();
  futex.asleep.store(1);
  bool is_late = false;
  if (!Changed()) {
    const timespec time = absl::ToTimespec(most);
    is_late = syscall(SYS_futex, reinterpret_cast<uint32_t*>(&futex.rung), FUTEX_WAIT, rung, &time,
                      nullptr, 0) != 0 &&
              errno == ETIMEDOUT;
  }
  futex.asleep.store(0);
  UpdateSeen();
  return is_late;
}

void ShmChannel::UpdateSeen() {
  seen_written_ = shared_->directions[1 - side_].written.load();
  seen_read_ = shared_->directions[side_].read.load();
}

uint64_t ShmChannel::popped() const {
  return shared_->directions[side_].read.load(std::memory_order_acquire);
}

void ShmChannel::Signal(int end) {
  Shared::Futex& futex = shared_->futexes[end];
  if (futex.asleep.load() == 0) return;
  futex.rung.fetch_add(1);
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&futex.rung), FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

void ShmChannel::Wake() {
  Shared::Futex& futex = shared_->futexes[side_];
  futex.rung.fetch_add(1);
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&futex.rung), FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

bool ShmChannel::PeerIsGone() const {
  char byte;
  const ssize_t got = recv(socket_, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

}  // namespace espalier
