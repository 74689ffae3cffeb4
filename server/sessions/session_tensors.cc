#include "server/sessions/session_tensors.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "ops/cpu/layout/copy_box.h"
#include "ops/graph/graph_proto.h"
#include "ops/graph/name_pattern.h"
#include "server/jobs/trained_parameters.h"

namespace espalier {
namespace {

constexpr int64_t kBytesPerPart = 8 << 20;
constexpr size_t kNamed = 20;

const char* KindName(v1::SessionTensorKind kind) {
  switch (kind) {
    case v1::SESSION_PARAMETER:
      return "parameter";
    case v1::SESSION_GRADIENT:
      return "gradient";
    case v1::SESSION_OPTIMIZER_STATE:
      return "optimizer state";
    case v1::SESSION_OUTPUT:
      return "output";
    default:
      return "tensor";
  }
}

// Returns nothing for a shard that does not lie in its whole tensor.
absl::StatusOr<TensorSpec> SpecOf(const v1::TensorSpec& message) {
  TensorSpec spec;
  spec.dtype = FromProto(message.dtype());
  spec.dims.assign(message.dims().begin(), message.dims().end());
  spec.offset.assign(message.offset().begin(), message.offset().end());
  spec.global.assign(message.global().begin(), message.global().end());
  if (spec.offset.empty()) spec.offset.assign(spec.dims.size(), 0);
  if (spec.global.empty()) spec.global = spec.dims;
  bool fits = spec.dtype != DType::kInvalid && spec.offset.size() == spec.dims.size() &&
              spec.global.size() == spec.dims.size();
  for (size_t d = 0; fits && d < spec.dims.size(); ++d) {
    fits = spec.dims[d] > 0 && spec.offset[d] >= 0 && spec.global[d] > 0 &&
           spec.dims[d] <= spec.global[d] && spec.offset[d] <= spec.global[d] - spec.dims[d];
  }
  if (!fits) return absl::InternalError(absl::StrCat("a shard ", message.ShortDebugString()));
  return spec;
}

}  // namespace

absl::Status TensorAssembler::Add(v1::TensorPart part) {
  const auto bad = [&part](const std::string& what) {
    return absl::InvalidArgumentError(absl::StrCat("tensor '", part.name(), "': ", what));
  };
  const TensorType type{FromProto(part.dtype()), {part.dims().begin(), part.dims().end()}};
  if (type.dtype == DType::kInvalid) return bad("it has no element type");
  int64_t elements = 1;
  for (const int64_t dim : type.dims) {
    if (dim <= 0 || __builtin_mul_overflow(elements, dim, &elements) ||
        elements > kMaxCommandBytes) {
      return bad(absl::StrCat("its shape is ", ToString(type.dims), "; dimensions are 1 or more, ",
                              "and a command's tensors have at most ", kMaxCommandBytes, " bytes"));
    }
  }
  const bool same = !tensors_.empty() && part.offset() > 0 && tensors_.back().name == part.name() &&
                    tensors_.back().kind == part.kind() && tensors_.back().type == type;
  const int64_t have = same ? static_cast<int64_t>(tensors_.back().data.size()) : 0;
  const auto bytes = static_cast<int64_t>(part.data().size());
  if (part.offset() != have || bytes > type.bytes() - have) {
    return bad(absl::StrCat(bytes, " bytes from byte ", part.offset(), " on, where byte ", have,
                            " of ", type.bytes(), " was due"));
  }
  bytes_ += bytes;
  if (bytes_ > kMaxCommandBytes) {
    return bad(absl::StrCat("the tensors of a command have at most ", kMaxCommandBytes, " bytes"));
  }
  if (same) {
    tensors_.back().data.append(part.data());
    return absl::OkStatus();
  }
  for (const WholeTensor& other : tensors_) {
    if (other.kind == part.kind() && other.name == part.name()) return bad("it is given twice");
  }
  tensors_.push_back({part.kind(), part.name(), type, std::move(*part.mutable_data())});
  return absl::OkStatus();
}

absl::StatusOr<std::vector<WholeTensor>> TensorAssembler::Take() {
  std::vector<WholeTensor> tensors = std::exchange(tensors_, {});
  bytes_ = 0;
  for (const WholeTensor& tensor : tensors) {
    if (static_cast<int64_t>(tensor.data.size()) == tensor.type.bytes()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("tensor '", tensor.name, "' has ", tensor.data.size(), " bytes; ",
                     ToString(tensor.type), " takes ", tensor.type.bytes()));
  }
  return tensors;
}

absl::Status SplitIntoParts(std::vector<WholeTensor> tensors,
                            const std::function<absl::Status(v1::TensorPart)>& emit) {
  for (WholeTensor& tensor : tensors) {
    const auto bytes = static_cast<int64_t>(tensor.data.size());
    for (int64_t at = 0; at == 0 || at < bytes; at += kBytesPerPart) {
      v1::TensorPart part;
      part.set_kind(tensor.kind);
      part.set_name(tensor.name);
      part.set_dtype(ToProto(tensor.type.dtype));
      for (const int64_t dim : tensor.type.dims) part.add_dims(dim);
      part.set_offset(at);
      if (bytes <= kBytesPerPart) {
        part.set_data(std::move(tensor.data));
      } else {
        part.set_data(tensor.data.substr(static_cast<size_t>(at), kBytesPerPart));
      }
      if (absl::Status s = emit(std::move(part)); !s.ok()) return s;
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<SessionTensors> SessionTensors::Create(
    const std::vector<v1::LoadProgramReply>& loaded) {
  SessionTensors tensors;
  for (size_t rank = 0; rank < loaded.size(); ++rank) {
    for (const v1::RankTensor& tensor : loaded[rank].tensors()) {
      absl::StatusOr<TensorSpec> spec = SpecOf(tensor.spec());
      if (!spec.ok()) return spec.status();
      const TensorType type{spec->dtype, spec->global};
      auto& entries = tensor.evaluation() ? tensors.evaluation_ : tensors.training_;
      Entry& entry =
          entries.try_emplace({tensor.kind(), tensor.name()}, Entry{type, {}, {}}).first->second;
      if (entry.type != type) {
        return absl::InternalError(absl::StrCat("tensor '", tensor.name(), "' is ", ToString(type),
                                                " on rank ", rank, " and ", ToString(entry.type),
                                                " on another"));
      }
      entry.shards.push_back({rank, tensor.buffer(), *std::move(spec)});
    }
  }
  for (auto* entries : {&tensors.training_, &tensors.evaluation_}) {
    for (auto& [key, entry] : *entries) {
      std::set<std::pair<Dims, Dims>> regions;
      int64_t elements = 0;
      for (const Shard& shard : entry.shards) {
        if (!regions.insert({shard.spec.offset, shard.spec.dims}).second) continue;
        entry.whole.push_back(shard);
        elements += shard.spec.num_elements();
      }
      if (elements == entry.type.num_elements()) continue;
      return absl::InternalError(absl::StrCat("the shards of '", key.second, "' have ", elements,
                                              " of ", entry.type.num_elements(), " elements"));
    }
  }
  return tensors;
}

std::vector<v1::SessionTensor> SessionTensors::List() const {
  std::map<Key, TensorType> all;
  for (const auto* entries : {&training_, &evaluation_}) {
    for (const auto& [key, entry] : *entries) all.emplace(key, entry.type);
  }
  std::vector<v1::SessionTensor> list;
  for (const auto& [key, type] : all) {
    v1::SessionTensor& tensor = list.emplace_back();
    tensor.set_kind(key.first);
    tensor.set_name(key.second);
    tensor.mutable_type()->set_dtype(ToProto(type.dtype));
    for (const int64_t dim : type.dims) tensor.mutable_type()->add_dims(dim);
  }
  return list;
}

std::vector<std::string> SessionTensors::Matching(v1::SessionTensorKind kind,
                                                  const std::string& pattern) const {
  std::vector<std::string> names;
  for (const auto& [key, entry] : training_) {
    if (key.first == kind && MatchesPattern(pattern, key.second)) names.push_back(key.second);
  }
  return names;
}

absl::StatusOr<TensorType> SessionTensors::Find(v1::SessionTensorKind kind,
                                                const std::string& name) const {
  const auto found = training_.find({kind, name});
  if (found != training_.end()) return found->second.type;
  std::vector<std::string> names = Matching(kind, "*");
  const size_t count = names.size();
  names.resize(std::min(count, kNamed));
  return absl::NotFoundError(absl::StrCat(
      "the session has no ", KindName(kind), " '", name, "'; it has ",
      count == 0 ? "none" : absl::StrJoin(names, ", "), count > kNamed ? ", ..." : ""));
}

const SessionTensors::Entry& SessionTensors::At(const Key& key, bool evaluation) const {
  const bool there = evaluation && evaluation_.contains(key);
  return there ? evaluation_.at(key) : training_.at(key);
}

std::vector<v1::RankCommand::Read> SessionTensors::ReadsOf(const Names& names,
                                                           bool evaluation) const {
  std::vector<v1::RankCommand::Read> reads;
  for (const Key& key : names) {
    const bool there = evaluation && evaluation_.contains(key);
    for (const Shard& shard : At(key, evaluation).whole) {
      if (reads.size() <= shard.rank) reads.resize(shard.rank + 1);
      (there ? reads[shard.rank].mutable_evaluation_buffers() : reads[shard.rank].mutable_buffers())
          ->Add(shard.buffer);
    }
  }
  return reads;
}

absl::StatusOr<std::vector<WholeTensor>> SessionTensors::Gather(
    const Names& names, bool evaluation, const std::vector<RankBuffers>& buffers) const {
  std::vector<WholeTensor> tensors;
  for (const Key& key : names) {
    const Entry& entry = At(key, evaluation);
    const bool there = evaluation && evaluation_.contains(key);
    WholeTensor& tensor = tensors.emplace_back();
    tensor.kind = key.first;
    tensor.name = key.second;
    tensor.type = entry.type;
    tensor.data.resize(static_cast<size_t>(entry.type.bytes()));
    for (const Shard& shard : entry.whole) {
      const std::string* bytes = nullptr;
      if (shard.rank < buffers.size()) {
        const auto found = buffers[shard.rank].find({there, shard.buffer});
        if (found != buffers[shard.rank].end()) bytes = &found->second;
      }
      if (bytes == nullptr || static_cast<int64_t>(bytes->size()) != shard.spec.bytes()) {
        return absl::InternalError(
            absl::StrCat("rank ", shard.rank, " gave ", bytes == nullptr ? 0 : bytes->size(),
                         " of ", shard.spec.bytes(), " bytes of '", key.second, "'"));
      }
      CopyBoxOnHost({bytes->data(), tensor.data.data(), entry.type.dtype, shard.spec.dims,
                     entry.type.dims, Dims(shard.spec.dims.size(), 0), shard.spec.offset,
                     shard.spec.dims, false});
    }
  }
  return tensors;
}

std::vector<std::vector<v1::BufferPart>> SessionTensors::WritesOf(const WholeTensor& tensor) const {
  std::vector<std::vector<v1::BufferPart>> writes;
  for (const Shard& shard : training_.at({tensor.kind, tensor.name}).shards) {
    if (writes.size() <= shard.rank) writes.resize(shard.rank + 1);
    std::string bytes(static_cast<size_t>(shard.spec.bytes()), '\0');
    CopyBoxOnHost({tensor.data.data(), bytes.data(), tensor.type.dtype, tensor.type.dims,
                   shard.spec.dims, shard.spec.offset, Dims(shard.spec.dims.size(), 0),
                   shard.spec.dims, false});
    for (size_t at = 0; at < bytes.size(); at += kBytesPerPart) {
      v1::BufferPart& part = writes[shard.rank].emplace_back();
      part.set_buffer(shard.buffer);
      part.set_offset(static_cast<int64_t>(at));
      part.set_data(bytes.substr(at, kBytesPerPart));
    }
  }
  return writes;
}

}  // namespace espalier
