#include "worker/collective/host_communicator.h"

#include <algorithm>
#include <cstring>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "ops/cpu/convert.h"

namespace espalier {
namespace {

constexpr int64_t kSmallBytes = 64 << 10;  // below, a round costs more than sending everything

template <typename T>
void AddTo(void* sum, const void* term, int64_t count) {
  T* out = static_cast<T*>(sum);
  const T* in = static_cast<const T*>(term);
  for (int64_t i = 0; i < count; ++i) out[i] = static_cast<T>(out[i] + in[i]);
}

void Move(void* to, const void* from, int64_t bytes) {
  if (to != from && bytes > 0) std::memmove(to, from, static_cast<size_t>(bytes));
}

absl::StatusOr<int> Locate(const Communicator::Group& group, const Communicator& self) {
  const int me = IndexIn(group, self.rank());
  if (me >= 0) return me;
  return absl::InvalidArgumentError(
      absl::StrCat("rank ", self.rank(), " is not in the group of this collective"));
}

bool CanAdd(DType dtype) { return IsFloat(dtype) || dtype == DType::kI32 || dtype == DType::kI64; }

}  // namespace

int IndexIn(const Communicator::Group& group, int rank) {
  auto it = std::find(group.begin(), group.end(), rank);
  return it == group.end() ? -1 : static_cast<int>(it - group.begin());
}

absl::Status HostCommunicator::ReducePart(DType dtype, const void* mine, void* output,
                                          int64_t count, const Group& group, int me, uint64_t tag) {
  const int64_t bytes = count * static_cast<int64_t>(SizeOf(dtype));
  const bool half = dtype == DType::kF16 || dtype == DType::kBF16;
  // All parts first, then the sum: `mine` may be `output`.
  const size_t others = group.size() - 1;
  received_.resize(static_cast<size_t>(bytes) * others + 1);
  char* next = received_.data();
  for (size_t r = 0; r < group.size(); ++r) {
    if (static_cast<int>(r) == me) continue;
    if (absl::Status s = Receive(next, bytes, group[r], tag); !s.ok()) return s;
    next += bytes;
  }
  if (half) sum_.assign(static_cast<size_t>(count) * 2, 0.0f);
  std::vector<char> own;
  if (!half && me != 0) {
    own.assign(static_cast<const char*>(mine), static_cast<const char*>(mine) + bytes);
    mine = own.data();
  }
  next = received_.data();
  for (size_t r = 0; r < group.size(); ++r) {
    const void* term = mine;
    if (static_cast<int>(r) != me) {
      term = next;
      next += bytes;
    }
    if (half) {
      float* part = sum_.data() + count;
      ToF32(dtype, term, part, count);
      for (int64_t i = 0; i < count; ++i) sum_[i] += part[i];
    } else if (r == 0) {
      Move(output, term, bytes);
    } else if (dtype == DType::kF32) {
      AddTo<float>(output, term, count);
    } else if (dtype == DType::kI32) {
      AddTo<uint32_t>(output, term, count);
    } else {
      AddTo<uint64_t>(output, term, count);
    }
  }
  if (half) FromF32(dtype, sum_.data(), output, count);
  return absl::OkStatus();
}

absl::Status HostCommunicator::AllReduce(DType dtype, const void* input, void* output,
                                         int64_t count, const Group& group, uint64_t tag) {
  absl::StatusOr<int> me = Locate(group, *this);
  if (!me.ok()) return me.status();
  if (!CanAdd(dtype)) {
    return absl::InvalidArgumentError(absl::StrCat("all_reduce does not take ", Name(dtype)));
  }
  const int64_t element = static_cast<int64_t>(SizeOf(dtype));
  const int64_t n = static_cast<int64_t>(group.size());
  const char* in = static_cast<const char*>(input);
  if (n == 2 || count * element <= kSmallBytes) {
    for (int peer : group) {
      if (peer == rank()) continue;
      if (absl::Status s = Send(in, count * element, peer, tag); !s.ok()) return s;
    }
    return ReducePart(dtype, in, output, count, group, *me, tag);
  }
  auto begin = [&](int64_t part) { return count * part / n; };
  char* out = static_cast<char*>(output);
  for (int64_t r = 0; r < n; ++r) {
    if (r == *me) continue;
    if (absl::Status s =
            Send(in + begin(r) * element, (begin(r + 1) - begin(r)) * element, group[r], tag);
        !s.ok()) {
      return s;
    }
  }
  const int64_t first = begin(*me), mine = begin(*me + 1) - first;
  if (absl::Status s =
          ReducePart(dtype, in + first * element, out + first * element, mine, group, *me, tag);
      !s.ok()) {
    return s;
  }
  for (int64_t r = 0; r < n; ++r) {
    if (r == *me) continue;
    if (absl::Status s = Send(out + first * element, mine * element, group[r], tag); !s.ok()) {
      return s;
    }
  }
  for (int64_t r = 0; r < n; ++r) {
    if (r == *me) continue;
    if (absl::Status s =
            Receive(out + begin(r) * element, (begin(r + 1) - begin(r)) * element, group[r], tag);
        !s.ok()) {
      return s;
    }
  }
  return absl::OkStatus();
}

absl::Status HostCommunicator::AllGather(const void* input, void* output, int64_t bytes,
                                         const Group& group, uint64_t tag) {
  absl::StatusOr<int> me = Locate(group, *this);
  if (!me.ok()) return me.status();
  char* out = static_cast<char*>(output);
  for (int peer : group) {
    if (peer == rank()) continue;
    if (absl::Status s = Send(input, bytes, peer, tag); !s.ok()) return s;
  }
  for (size_t r = 0; r < group.size(); ++r) {
    char* part = out + static_cast<int64_t>(r) * bytes;
    if (static_cast<int>(r) == *me) {
      Move(part, input, bytes);
    } else if (absl::Status s = Receive(part, bytes, group[r], tag); !s.ok()) {
      return s;
    }
  }
  return absl::OkStatus();
}

absl::Status HostCommunicator::ReduceScatter(DType dtype, const void* input, void* output,
                                             int64_t count, const Group& group, uint64_t tag) {
  absl::StatusOr<int> me = Locate(group, *this);
  if (!me.ok()) return me.status();
  if (!CanAdd(dtype)) {
    return absl::InvalidArgumentError(absl::StrCat("reduce_scatter does not take ", Name(dtype)));
  }
  const int64_t bytes = count * static_cast<int64_t>(SizeOf(dtype));
  const char* in = static_cast<const char*>(input);
  for (size_t r = 0; r < group.size(); ++r) {
    if (static_cast<int>(r) == *me) continue;
    if (absl::Status s = Send(in + static_cast<int64_t>(r) * bytes, bytes, group[r], tag);
        !s.ok()) {
      return s;
    }
  }
  return ReducePart(dtype, in + *me * bytes, output, count, group, *me, tag);
}

absl::Status HostCommunicator::AllToAll(const void* input, void* output, int64_t bytes,
                                        const Group& group, uint64_t tag) {
  absl::StatusOr<int> me = Locate(group, *this);
  if (!me.ok()) return me.status();
  const char* in = static_cast<const char*>(input);
  char* out = static_cast<char*>(output);
  for (size_t r = 0; r < group.size(); ++r) {
    const int64_t offset = static_cast<int64_t>(r) * bytes;
    if (static_cast<int>(r) == *me) {
      Move(out + offset, in + offset, bytes);
    } else if (absl::Status s = Send(in + offset, bytes, group[r], tag); !s.ok()) {
      return s;
    }
  }
  for (size_t r = 0; r < group.size(); ++r) {
    if (static_cast<int>(r) == *me) continue;
    if (absl::Status s = Receive(out + static_cast<int64_t>(r) * bytes, bytes, group[r], tag);
        !s.ok()) {
      return s;
    }
  }
  return absl::OkStatus();
}

absl::Status HostCommunicator::Broadcast(const void* input, void* output, int64_t bytes,
                                         const Group& group, uint64_t tag) {
  absl::StatusOr<int> me = Locate(group, *this);
  if (!me.ok()) return me.status();
  if (*me != 0) return Receive(output, bytes, group[0], tag);
  for (int peer : group) {
    if (peer == rank()) continue;
    if (absl::Status s = Send(input, bytes, peer, tag); !s.ok()) return s;
  }
  Move(output, input, bytes);
  return absl::OkStatus();
}

}  // namespace espalier
