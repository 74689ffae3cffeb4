#include "worker/collective/host_communicator.h"

#include <algorithm>
#include <cstring>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "ops/cpu/dtype/convert.h"

namespace espalier {
namespace {

constexpr int64_t kSmallBytes = 64 << 10;  // below, rounds cost more than sending all

template <typename T>
void AddTo(void* sum, const void* term, int64_t count) {
  T* out = static_cast<T*>(sum);
  const T* in = static_cast<const T*>(term);
  for (int64_t i = 0; i < count; ++i) out[i] = static_cast<T>(out[i] + in[i]);
}

void Move(void* to, const void* from, int64_t bytes) {
  if (to != from && bytes > 0) std::memmove(to, from, static_cast<size_t>(bytes));
}

absl::Span<const char> Bytes(const void* data, int64_t bytes) {
  return {static_cast<const char*>(data), static_cast<size_t>(bytes)};
}

absl::StatusOr<int> Locate(const Communicator::Group& group, const Communicator& self) {
  const int me = IndexInGroup(group, self.rank());
  if (me >= 0) return me;
  return absl::InvalidArgumentError(
      absl::StrCat("rank ", self.rank(), " is not in the group of this collective"));
}

bool CanAdd(DType dtype) { return IsFloat(dtype) || dtype == DType::kI32 || dtype == DType::kI64; }

}  // namespace

int IndexInGroup(const Communicator::Group& group, int rank) {
  auto it = std::find(group.begin(), group.end(), rank);
  return it == group.end() ? -1 : static_cast<int>(it - group.begin());
}

absl::Status HostCommunicator::Exchange(const Group& group, int me, int64_t largest, uint64_t tag,
                                        Outgoing outgoing, Incoming incoming) {
  const int n = static_cast<int>(group.size());
  if (n < 2) return absl::OkStatus();
  // In round k each rank sends to the k-th rank after it and receives from the k-th before it;
  // buffered sends run ahead of receives. A blocked send waits for one of an earlier round, which
  // its peer receives before it reaches this round: no cycle of waits is possible at any message
  // size.
  const int64_t room = largest > 0 ? max_buffered_bytes() / largest : n;
  const int early = static_cast<int>(std::clamp<int64_t>(room, 1, n - 1));
  for (int k = 1; k < n - 1 + early; ++k) {
    if (k < n) {
      const int to = (me + k) % n;
      const absl::Span<const char> part = outgoing(to);
      absl::Status s = Send(part.data(), static_cast<int64_t>(part.size()), group[to], tag);
      if (!s.ok()) return s;
    }
    if (k >= early) {
      const int from = (me - (k - early + 1) + n) % n;
      const absl::Span<char> part = incoming(from);
      absl::Status s = Receive(part.data(), static_cast<int64_t>(part.size()), group[from], tag);
      if (!s.ok()) return s;
    }
  }
  return absl::OkStatus();
}

absl::Status HostCommunicator::ReduceParts(DType dtype, Outgoing parts, void* output, int64_t count,
                                           int64_t most, const Group& group, int me, uint64_t tag) {
  const int64_t element = static_cast<int64_t>(SizeOf(dtype));
  const int64_t bytes = count * element;
  const bool half = dtype == DType::kF16 || dtype == DType::kBF16;
  // Receive all parts, then add: `mine` may be `output`.
  const void* mine = parts(me).data();
  received_.resize(static_cast<size_t>(bytes) * (group.size() - 1) + 1);
  const auto place = [&](int from) {
    return absl::MakeSpan(received_.data() + bytes * (from < me ? from : from - 1),
                          static_cast<size_t>(bytes));
  };
  if (absl::Status s = Exchange(group, me, most * element, tag, parts, place); !s.ok()) return s;
  if (half) sum_.assign(static_cast<size_t>(count) * 2, 0.0f);
  std::vector<char> own;
  if (!half && me != 0) {
    own.assign(static_cast<const char*>(mine), static_cast<const char*>(mine) + bytes);
    mine = own.data();
  }
  for (int r = 0; r < static_cast<int>(group.size()); ++r) {
    const void* term = r == me ? mine : place(r).data();
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
    const auto whole = [&](int) { return Bytes(in, count * element); };
    return ReduceParts(dtype, whole, output, count, count, group, *me, tag);
  }
  const auto begin = [&](int64_t part) { return count * part / n; };
  const auto length = [&](int64_t part) { return begin(part + 1) - begin(part); };
  const int64_t most = (count + n - 1) / n;
  char* out = static_cast<char*>(output);
  const auto part = [&](int r) { return Bytes(in + begin(r) * element, length(r) * element); };
  absl::Status s =
      ReduceParts(dtype, part, out + begin(*me) * element, length(*me), most, group, *me, tag);
  if (!s.ok()) return s;
  const auto sum = [&](int) { return Bytes(out + begin(*me) * element, length(*me) * element); };
  const auto sum_of = [&](int r) {
    return absl::MakeSpan(out + begin(r) * element, static_cast<size_t>(length(r) * element));
  };
  return Exchange(group, *me, most * element, tag, sum, sum_of);
}

absl::Status HostCommunicator::AllGather(const void* input, void* output, int64_t bytes,
                                         const Group& group, uint64_t tag) {
  absl::StatusOr<int> me = Locate(group, *this);
  if (!me.ok()) return me.status();
  char* out = static_cast<char*>(output);
  const auto place = [&](int r) {
    return absl::MakeSpan(out + r * bytes, static_cast<size_t>(bytes));
  };
  const auto mine = [&](int) { return Bytes(input, bytes); };
  if (absl::Status s = Exchange(group, *me, bytes, tag, mine, place); !s.ok()) return s;
  Move(place(*me).data(), input, bytes);
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
  const auto part = [&](int r) { return Bytes(in + r * bytes, bytes); };
  return ReduceParts(dtype, part, output, count, count, group, *me, tag);
}

absl::Status HostCommunicator::AllToAll(const void* input, void* output, int64_t bytes,
                                        const Group& group, uint64_t tag) {
  absl::StatusOr<int> me = Locate(group, *this);
  if (!me.ok()) return me.status();
  const char* in = static_cast<const char*>(input);
  char* out = static_cast<char*>(output);
  const auto part = [&](int r) { return Bytes(in + r * bytes, bytes); };
  const auto place = [&](int r) {
    return absl::MakeSpan(out + r * bytes, static_cast<size_t>(bytes));
  };
  if (absl::Status s = Exchange(group, *me, bytes, tag, part, place); !s.ok()) return s;
  Move(place(*me).data(), part(*me).data(), bytes);
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
