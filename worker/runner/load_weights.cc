#include <algorithm>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "ops/cpu/convert.h"
#include "ops/quantized/pack.h"
#include "worker/runner/program_model_runner.h"
#include "worker/weights/weight_files.h"

namespace espalier {
namespace {

// Elements that are read, converted and handed to the device at a time: what loading takes besides
// the weights themselves.
constexpr int64_t kChunk = 1 << 20;

// Takes a matrix from its first element on and hands it on in packed blocks.
class Packer {
 public:
  Packer(std::string name, const PackedWeights& shape) : name_(std::move(name)), shape_(shape) {}

  absl::Status Add(const std::vector<float>& values, int index, Executor& executor) {
    rows_.insert(rows_.end(), values.begin(), values.end());
    const size_t block = static_cast<size_t>(kPackOutputs * shape_.in);
    size_t taken = 0;
    for (; rows_.size() - taken >= block; taken += block) {
      if (absl::Status s = Write(rows_.data() + taken, kPackOutputs, index, executor); !s.ok()) {
        return s;
      }
    }
    rows_.erase(rows_.begin(), rows_.begin() + static_cast<int64_t>(taken));
    return absl::OkStatus();
  }

  // The last rows, of which there are fewer than a block.
  absl::Status Flush(int index, Executor& executor) {
    const int64_t rows = static_cast<int64_t>(rows_.size()) / shape_.in;
    return rows == 0 ? absl::OkStatus() : Write(rows_.data(), rows, index, executor);
  }

 private:
  absl::Status Write(const float* rows, int64_t count, int index, Executor& executor) {
    const PackedWeights part{shape_.bits, count, shape_.in};
    packed_.resize(static_cast<size_t>(part.block_bytes()));
    if (absl::Status s = Pack(name_, part, rows, packed_.data()); !s.ok()) return s;
    const int64_t at = block_++ * part.block_bytes();
    return executor.WriteBuffer(index, packed_.data(), part.block_bytes(), at);
  }

  const std::string name_;
  const PackedWeights shape_;
  std::vector<float> rows_;
  std::vector<uint8_t> packed_;
  int64_t block_ = 0;
};

class Loader {
 public:
  Loader(const WeightFiles& files, const std::string& folder, Executor& executor)
      : files_(files), folder_(folder), executor_(executor) {}

  // Buffer `index` from what the map says of it.
  absl::Status Load(int index, const WeightMap& map) {
    const std::string& name = executor_.buffer(index).name();
    const TensorSpec& spec = executor_.spec(index);
    const auto found = map.sources.find(name);
    WeightSource whole{{{name, spec.dims, false, 0, spec.dims.empty() ? 1 : spec.dims[0]}}};
    const WeightSource& source = found != map.sources.end() ? found->second : whole;
    if (spec.dtype == DType::kU8 && found == map.sources.end() && spec.dims == spec.global) {
      return LoadPacked(index, name);
    }
    const bool packed = source.bits != 0;
    if ((!packed && !IsFloat(spec.dtype)) || !(spec.dims == spec.global)) {
      return absl::InvalidArgumentError(
          absl::StrCat("parameter '", name, "' is ", ToString(spec.type()),
                       "; only whole floating-point parameters can be loaded"));
    }
    packer_.reset();
    if (packed) packer_.emplace(name, PackedWeights{source.bits, source.out, source.in});
    int64_t at = 0;
    for (const WeightPiece& piece : source.pieces) {
      if (absl::Status s = LoadPiece(index, piece, source.add, &at); !s.ok()) return s;
    }
    const int64_t expected = packed ? source.out * source.in : spec.num_elements();
    if (at != expected) {
      return absl::InternalError(absl::StrCat("the pieces of parameter '", name, "' hold ", at,
                                              " elements, not ", expected));
    }
    if (packed) return packer_->Flush(index, executor_);
    return absl::OkStatus();
  }

  // What nobody read.
  absl::Status CheckRest(const WeightMap& map) const {
    std::vector<std::string> rest;
    for (const auto& [name, tensor] : files_.tensors()) {
      const bool ignored =
          std::any_of(map.ignored.begin(), map.ignored.end(),
                      [&name = name](const std::string& end) { return absl::EndsWith(name, end); });
      if (!ignored && used_.count(name) == 0) rest.push_back(name);
    }
    if (rest.empty()) return absl::OkStatus();
    std::string some;
    for (size_t i = 0; i < std::min<size_t>(rest.size(), 3); ++i) {
      absl::StrAppend(&some, i == 0 ? "'" : ", '", rest[i], "'");
    }
    return absl::InvalidArgumentError(
        absl::StrCat("the weights in '", folder_, "' hold ", rest.size(),
                     " tensors that the model of config.json does not have: ", some,
                     rest.size() > 3 ? ", ..." : ""));
  }

 private:
  using Entry = std::pair<const std::string, WeightFiles::Tensor>;

  // Under its name, or without the model's prefix ("transformer."), which bare models lack.
  const Entry* Find(const std::string& name) const {
    auto found = files_.tensors().find(name);
    if (found == files_.tensors().end())
      found = files_.tensors().find(name.substr(name.find('.') + 1));
    return found == files_.tensors().end() ? nullptr : &*found;
  }

  absl::Status LoadPiece(int index, const WeightPiece& piece, double add, int64_t* at) {
    const Entry* entry = Find(piece.tensor);
    if (entry == nullptr) {
      return absl::NotFoundError(absl::StrCat("the weights in '", folder_, "' have no tensor '",
                                              piece.tensor, "'; does config.json belong to them?"));
    }
    const auto& [name, tensor] = *entry;
    used_.insert(name);
    if (tensor.dims != piece.dims) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", tensor.file, "': tensor '", name, "' has shape ", ToString(tensor.dims),
                       ", config.json asks for ", ToString(piece.dims)));
    }
    if (piece.transposed) return LoadTransposed(index, piece, name, add, at);
    const int64_t row =
        piece.dims.empty() || piece.dims[0] == 0 ? 1 : NumElements(piece.dims) / piece.dims[0];
    for (int64_t from = piece.begin * row; from < piece.end * row; from += kChunk) {
      const int64_t count = std::min(kChunk, piece.end * row - from);
      wide_.resize(static_cast<size_t>(count));
      if (absl::Status s = files_.Read(name, from, count, wide_.data()); !s.ok()) return s;
      if (absl::Status s = Store(index, add, at); !s.ok()) return s;
    }
    return absl::OkStatus();
  }

  // A matrix that the file holds as memory does.
  absl::Status LoadPacked(int index, const std::string& parameter) {
    const TensorSpec& spec = executor_.spec(index);
    const Entry* entry = Find(parameter);
    if (entry == nullptr) {
      return absl::NotFoundError(absl::StrCat("the weights in '", folder_,
                                              "' have no packed matrix '", parameter,
                                              "'; does config.json belong to them?"));
    }
    if (entry->second.dims != spec.dims) {
      return absl::InvalidArgumentError(absl::StrCat(
          "'", entry->second.file, "': packed matrix '", parameter, "' has shape ",
          ToString(entry->second.dims), ", config.json asks for ", ToString(spec.dims)));
    }
    used_.insert(entry->first);
    std::vector<char> part;
    for (int64_t at = 0; at < spec.bytes(); at += kChunk) {
      part.resize(static_cast<size_t>(std::min(kChunk, spec.bytes() - at)));
      const int64_t bytes = static_cast<int64_t>(part.size());
      absl::Status status = files_.ReadBytes(entry->first, at, bytes, part.data());
      if (status.ok()) status = executor_.WriteBuffer(index, part.data(), bytes, at);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status LoadTransposed(int index, const WeightPiece& piece, const std::string& name,
                              double add, int64_t* at) {
    const int64_t in = piece.dims[0], out = piece.dims[1];
    std::vector<float> whole(static_cast<size_t>(in * out));
    if (absl::Status s = files_.Read(name, 0, in * out, whole.data()); !s.ok()) return s;
    for (int64_t row = piece.begin; row < piece.end; ++row) {
      wide_.resize(static_cast<size_t>(in));
      for (int64_t i = 0; i < in; ++i) wide_[i] = whole[i * out + row];
      if (absl::Status s = Store(index, add, at); !s.ok()) return s;
    }
    return absl::OkStatus();
  }

  // wide_ into the buffer, from element *at on.
  absl::Status Store(int index, double add, int64_t* at) {
    const TensorSpec& spec = executor_.spec(index);
    const int64_t count = static_cast<int64_t>(wide_.size()), size = SizeOf(spec.dtype);
    if (add != 0) {
      for (float& value : wide_) value += static_cast<float>(add);
    }
    if (packer_.has_value()) {
      *at += count;
      return packer_->Add(wide_, index, executor_);
    }
    const void* data = wide_.data();
    if (spec.dtype != DType::kF32) {
      narrow_.resize(static_cast<size_t>(count * size));
      FromF32(spec.dtype, wide_.data(), narrow_.data(), count);
      data = narrow_.data();
    }
    absl::Status status = executor_.WriteBuffer(index, data, count * size, *at * size);
    *at += count;
    return status;
  }

  const WeightFiles& files_;
  const std::string& folder_;
  Executor& executor_;
  std::set<std::string> used_;
  std::optional<Packer> packer_;  // of the parameter being loaded, if it is packed
  std::vector<float> wide_;
  std::vector<char> narrow_;
};

}  // namespace

absl::Status LoadWeights(const std::string& folder, const WeightMap& map, Executor& executor) {
  std::unique_ptr<FileSystem> system = NewPosixFileSystem();
  absl::StatusOr<std::unique_ptr<WeightFiles>> files = OpenWeights(*system, folder);
  if (!files.ok()) return files.status();
  Loader loader(**files, folder, executor);
  for (int i = 0; i < executor.num_buffers(); ++i) {
    if (executor.buffer(i).kind() != proto::PARAMETER_SHARD) continue;
    if (absl::Status s = loader.Load(i, map); !s.ok()) return s;
  }
  return loader.CheckRest(map);
}

}  // namespace espalier
