#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "models/weights/weight_files.h"
#include "ops/cpu/dtype/convert.h"
#include "ops/quantized/pack.h"
#include "worker/runner/box_ranges.h"
#include "worker/runner/in_place_reads.h"
#include "worker/runner/program_model_runner.h"
#include "worker/runner/weight_packer.h"

namespace espalier {
namespace {

// Elements per chunk of reading and converting: the memory that loading needs beyond the weights.
constexpr int64_t kReadChunk = 1 << 20;

// Minimum average bytes per contiguous range for which reading from the file in every step is not
// much slower than copying from memory.
constexpr int64_t kMinRangeBytes = 1 << 16;

class Loader {
 public:
  Loader(const WeightFiles& files, const std::string& folder, const WeightLoadOptions& loading,
         Executor& executor)
      : files_(files), folder_(folder), loading_(loading), executor_(executor), in_place_(files) {}

  // Loads buffer `index`, this rank's part of a parameter, as the map says, or leaves it to
  // ReadInPlace.
  absl::Status Load(int index, const WeightMap& map) {
    const std::string& name = executor_.tensor_name(index);
    const TensorSpec& spec = executor_.spec(index);
    const auto found = map.sources.find(name);
    const WeightSource all{
        {{name, spec.global, false, 0, spec.global.empty() ? 1 : spec.global[0]}}};
    const WeightSource& source = found != map.sources.end() ? found->second : all;
    if (source.pieces.empty()) return absl::OkStatus();
    if (source.bits == 0 && spec.dtype == DType::kU8 && source.pieces.size() == 1) {
      // A packed matrix without further information: all of its blocks.
      return LoadPacked(index, source, /*units_known=*/false);
    }
    if (source.bits == 0 && !IsFloat(spec.dtype)) {
      return absl::InvalidArgumentError(
          absl::StrCat("parameter '", name, "' is ", ToString(spec.type()),
                       "; only floating-point parameters can be loaded"));
    }
    const absl::StatusOr<bool> left = SetBackingFiles(index, source);
    if (!left.ok() || *left) return left.status();
    packer_.reset();
    Dims whole = spec.global, start = spec.offset, size = spec.dims;
    PackedWeights packed;
    uint8_t* home = nullptr;  // where numbers can be read, or Q8_0 blocks packed, in place
    if (IsAsInMemory(source, spec.dtype)) home = executor_.HostData(index);
    if (source.bits != 0) {
      const absl::StatusOr<PackedPart> part = PartOf(name, source, spec);
      if (!part.ok()) return part.status();
      if (source.packed) return LoadPacked(index, source, /*units_known=*/true);
      const size_t rank = spec.global.size();
      whole[rank - 2] = source.out;
      whole[rank - 1] = source.in;
      start[rank - 2] *= kPackOutputs;
      start[rank - 1] = part->first;
      size[rank - 2] = part->shape.out;
      size[rank - 1] = part->shape.in;
      const bool blocks = KeepsQ8Blocks(source) && part->first % kPackGroup == 0 &&
                          part->shape.in % kPackGroup == 0;
      packed = part->shape;
      if (blocks && IsInWholeBlocks(source, *part, rank)) home = executor_.HostData(index);
      packer_.emplace(name, part->shape,
                      blocks ? WeightPacker::Rows::kQ8Blocks : WeightPacker::Rows::kF32);
    }
    int64_t at = 0;
    const BoxRanges box(whole, start, size);
    absl::Status status;
    if (home == nullptr) {
      status = LoadBox(index, source, box, &at);
    } else if (packer_.has_value()) {
      status = AddQ8Rows(name, source, packed, box, home, &at);
    } else {
      status = AddNumbers(source, box, reinterpret_cast<float*>(home), &at);
    }
    if (!status.ok()) return status;
    if (at != NumElements(size)) {
      return absl::InternalError(absl::StrCat("the pieces of parameter '", name, "' hold ", at,
                                              " elements of ", NumElements(size)));
    }
    return absl::OkStatus();
  }

  // Reads what goes straight to host memory.
  absl::Status ReadInPlace() const { return in_place_.Run(loading_); }

  // Tensors that no parameter reads.
  absl::Status CheckRest(const WeightMap& map) {
    // Tensors that other ranks read.
    for (const auto& [parameter, source] : map.sources) {
      for (const WeightSlice& piece : source.pieces) {
        if (const Entry* entry = Find(piece.tensor); entry != nullptr) used_.insert(entry->first);
      }
    }
    std::vector<std::string> rest;
    for (const auto& [name, tensor] : files_.tensors()) {
      if (!IsIgnored(map, name) && used_.count(name) == 0) rest.push_back(name);
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
  // The part of a packed matrix in a buffer: all outputs of its blocks, inputs from `first` on.
  struct PackedPart {
    PackedWeights shape;
    int64_t first = 0;
  };

  using Entry = std::pair<const std::string, WeightFiles::Tensor>;

  const Entry* Find(const std::string& tensor) const {
    for (const std::string& name : TensorNames(tensor)) {
      const auto found = files_.tensors().find(name);
      if (found != files_.tensors().end()) return &*found;
    }
    return nullptr;
  }

  // Calls take(begin, count) for elements [begin, begin + count) of the open piece, at most `chunk`
  // at a time, for all elements of the box in order; splits at piece boundaries.
  template <typename Take>
  absl::Status ForBox(const WeightSource& source, BoxRanges runs, int64_t chunk, const Take& take) {
    // Pieces cover the whole tensor consecutively; this is the position of the current one.
    size_t next = 0;
    int64_t piece_begin = 0, piece_end = 0;
    int64_t begin = 0, count = 0;
    while (runs.Next(&begin, &count)) {
      while (count > 0) {
        while (begin >= piece_end && next < source.pieces.size()) {
          if (absl::Status s = OpenPiece(source.pieces[next++]); !s.ok()) return s;
          piece_begin = piece_end;
          piece_end += piece_elements_;
        }
        if (begin >= piece_end) return absl::OkStatus();  // the caller reports what is missing
        const int64_t n = std::min({count, piece_end - begin, chunk});
        if (absl::Status s = take(begin - piece_begin, n); !s.ok()) return s;
        begin += n;
        count -= n;
      }
    }
    return absl::OkStatus();
  }

  auto Writer(int index) {
    return [this, index](const uint8_t* blocks, int64_t bytes, int64_t offset) {
      return loading_.Write(executor_, index, blocks, bytes, offset);
    };
  }

  // Whether a matrix of 8 bits is stored as Q8_0 blocks, which need only be rearranged.
  bool KeepsQ8Blocks(const WeightSource& source) const {
    if (source.bits != 8 || source.add != 0 || source.in % kPackGroup != 0) return false;
    return std::all_of(source.pieces.begin(), source.pieces.end(), [this](const WeightSlice& p) {
      const Entry* const entry = Find(p.tensor);
      return !p.transposed && entry != nullptr && files_.HasQ8Blocks(entry->first);
    });
  }

  absl::Status LoadQ8Blocks(int index, const WeightSource& source, const BoxRanges& runs,
                            int64_t* at) {
    return ForBox(source, runs, kReadChunk, [&](int64_t begin, int64_t count) {
      const int64_t first = (piece_->begin * piece_row_ + begin) / kPackGroup;
      const int64_t blocks = count / kPackGroup;
      uint8_t* const rows = packer_->Append(static_cast<size_t>(blocks * kQ8BlockBytes));
      absl::Status status = files_.ReadQ8Blocks(piece_name_, first, blocks, rows);
      if (!status.ok()) return status;
      *at += count;
      return packer_->PackRows(Writer(index));
    });
  }

  // Whether the part is whole rows, and no packed block has rows of two pieces.
  static bool IsInWholeBlocks(const WeightSource& source, const PackedPart& part, size_t rank) {
    if (part.first != 0 || part.shape.in != source.in) return false;
    // A last block may be incomplete if no other matrix follows.
    const size_t whole = source.pieces.size() - (rank == 2 ? 1 : 0);
    for (size_t i = 0; i < source.pieces.size(); ++i) {
      const WeightSlice& piece = source.pieces[i];
      if (piece.dims.size() != 2 || piece.dims[1] != source.in) return false;
      if (i < whole && (piece.end - piece.begin) % kPackOutputs != 0) return false;
    }
    return true;
  }

  // Lets ReadInPlace pack Q8_0 blocks straight into host memory. REQUIRES: IsInWholeBlocks.
  absl::Status AddQ8Rows(const std::string& name, const WeightSource& source,
                         const PackedWeights& shape, const BoxRanges& runs, uint8_t* to,
                         int64_t* at) {
    const int64_t all = std::numeric_limits<int64_t>::max();
    return ForBox(source, runs, all, [&](int64_t begin, int64_t count) {
      const PackedWeights part{shape.bits, count / shape.in, shape.in};
      in_place_.AddQ8Rows(piece_name_, name, part, piece_->begin + begin / shape.in, to);
      to += part.blocks() * shape.block_bytes();
      *at += count;
      return absl::OkStatus();
    });
  }

  // Whether the numbers can be read straight into host memory.
  static bool IsAsInMemory(const WeightSource& source, DType dtype) {
    return source.bits == 0 && source.add == 0 && dtype == DType::kF32 &&
           std::none_of(source.pieces.begin(), source.pieces.end(),
                        [](const WeightSlice& piece) { return piece.transposed; });
  }

  absl::Status AddNumbers(const WeightSource& source, const BoxRanges& runs, float* to,
                          int64_t* at) {
    const int64_t all = std::numeric_limits<int64_t>::max();
    return ForBox(source, runs, all, [&](int64_t begin, int64_t count) {
      in_place_.AddNumbers(piece_name_, piece_->begin * piece_row_ + begin, count, to + *at);
      *at += count;
      return absl::OkStatus();
    });
  }

  absl::Status LoadBox(int index, const WeightSource& source, const BoxRanges& runs, int64_t* at) {
    if (packer_.has_value() && packer_->kind() == WeightPacker::Rows::kQ8Blocks) {
      return LoadQ8Blocks(index, source, runs, at);
    }
    wide_.clear();
    absl::Status status = ForBox(source, runs, kReadChunk, [&](int64_t begin, int64_t count) {
      absl::Status read = Read(begin, count);
      if (!read.ok() || static_cast<int64_t>(wide_.size()) < kReadChunk) return read;
      read = Store(index, source.add, at);
      wide_.clear();
      return read;
    });
    if (!status.ok() || wide_.empty()) return status;
    return Store(index, source.add, at);
  }

  // Backs a streamed parameter with its files, which are then read in each step, if they store it
  // as memory does. Returns false if it must be loaded.
  absl::StatusOr<bool> SetBackingFiles(int index, const WeightSource& source) {
    if (source.bits != 0 || source.add != 0 || !executor_.CanBeFileBacked(index)) return false;
    const TensorSpec& spec = executor_.spec(index);
    const int64_t size = static_cast<int64_t>(SizeOf(spec.dtype));
    std::vector<FileRange> runs;
    bool fits = true;
    const BoxRanges box(spec.global, spec.offset, spec.dims);
    absl::Status status = ForBox(source, box, kReadChunk, [&](int64_t begin, int64_t n) {
      const std::optional<WeightFiles::Place> place = files_.PlaceOf(piece_name_);
      fits = fits && !piece_->transposed && place.has_value() && place->dtype == spec.dtype;
      if (fits) {
        AddRange(
            {place->file, place->offset + (piece_->begin * piece_row_ + begin) * size, n * size},
            &runs);
      }
      return absl::OkStatus();
    });
    if (!status.ok()) return status;
    const int64_t count = static_cast<int64_t>(runs.size());
    int64_t bytes = 0;
    for (const FileRange& run : runs) bytes += run.bytes;
    if (!fits || bytes != spec.bytes() || (count > 1 && bytes / count < kMinRangeBytes))
      return false;
    status = executor_.SetBackingFiles(index, std::move(runs));
    if (!status.ok()) return status;
    return true;
  }

  static void AddRange(FileRange run, std::vector<FileRange>* runs) {
    if (!runs->empty() && runs->back().file == run.file &&
        runs->back().offset + runs->back().bytes == run.offset) {
      runs->back().bytes += run.bytes;
    } else {
      runs->push_back(std::move(run));
    }
  }

  absl::Status OpenPiece(const WeightSlice& piece) {
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
    piece_ = &piece;
    piece_name_ = name;
    const int64_t rows = piece.dims.empty() ? 1 : piece.dims[piece.transposed ? 1 : 0];
    piece_row_ = rows == 0 ? 0 : NumElements(piece.dims) / rows;
    piece_elements_ = (piece.end - piece.begin) * piece_row_;
    transposed_.clear();
    return absl::OkStatus();
  }

  static absl::StatusOr<PackedPart> PartOf(const std::string& name, const WeightSource& source,
                                           const TensorSpec& spec) {
    const PackedWeights all{source.bits, source.out, source.in};
    const int64_t bytes = all.block_bytes();
    // Experts have several matrices.
    const size_t rank = spec.global.size();
    if (spec.dtype == DType::kU8 && (rank == 2 || rank == 3) &&
        spec.global[rank - 2] == all.blocks() && spec.global[rank - 1] == bytes) {
      const int64_t begin = spec.offset[rank - 2] * kPackOutputs, part = spec.dims[rank - 1];
      const int64_t rows = std::min(spec.dims[rank - 2] * kPackOutputs, source.out - begin);
      if (part == bytes) return PackedPart{{source.bits, rows, source.in}, 0};
      // Units are consecutive, so a part of the bytes is a part of the inputs.
      const int64_t unit = all.unit(), first = spec.offset[rank - 1],
                    unit_bytes = PackedWeights{source.bits, 1, unit}.block_bytes();
      if (source.in % unit == 0 && part % unit_bytes == 0 && first % unit_bytes == 0) {
        return PackedPart{{source.bits, rows, part / unit_bytes * unit}, first / unit_bytes * unit};
      }
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "parameter '", name, "' is ", ToString(spec.type()), " of ", ToString(spec.global),
        "; a matrix of ", source.out, " x ", source.in, " with ", source.bits,
        " bits can only be loaded in whole blocks, or in parts of ", all.unit(), " inputs"));
  }

  // For a matrix stored as in memory: whether its split along the inputs, if any, is known to fall
  // between units.
  absl::Status LoadPacked(int index, const WeightSource& source, bool units_known) {
    const TensorSpec& spec = executor_.spec(index);
    const std::string& tensor = source.pieces[0].tensor;
    const Entry* entry = Find(tensor);
    if (entry == nullptr) {
      return absl::NotFoundError(absl::StrCat("the weights in '", folder_,
                                              "' have no packed matrix '", tensor,
                                              "'; does config.json belong to them?"));
    }
    if (entry->second.dims != spec.global || spec.global.size() < 2) {
      return absl::InvalidArgumentError(absl::StrCat(
          "'", entry->second.file, "': packed matrix '", tensor, "' has shape ",
          ToString(entry->second.dims), ", config.json asks for ", ToString(spec.global)));
    }
    used_.insert(entry->first);
    const bool whole_blocks = spec.dims.back() == spec.global.back();
    if (!whole_blocks && !units_known) {
      return absl::InvalidArgumentError(
          absl::StrCat("packed matrix '", tensor,
                       "' is cut along its inputs, and it is unknown how "
                       "many bits its numbers have"));
    }
    // One range of blocks, or one per expert; or a part of each block.
    std::vector<std::pair<int64_t, int64_t>> runs;
    BoxRanges box(spec.global, spec.offset, spec.dims);
    for (int64_t begin = 0, count = 0; box.Next(&begin, &count);) runs.emplace_back(begin, count);
    const int64_t count = static_cast<int64_t>(runs.size());
    const std::optional<WeightFiles::Place> place = files_.PlaceOf(entry->first);
    if (executor_.CanBeFileBacked(index) && place.has_value() && place->dtype == DType::kU8 &&
        (count == 1 || spec.bytes() / count >= kMinRangeBytes)) {
      std::vector<FileRange> files;
      for (const auto& [begin, bytes] : runs) {
        AddRange({place->file, place->offset + begin, bytes}, &files);
      }
      return executor_.SetBackingFiles(index, std::move(files));
    }
    std::vector<uint8_t> read;
    int64_t written = 0;
    const auto flush = [&] {
      const int64_t bytes = static_cast<int64_t>(read.size());
      absl::Status status = loading_.Write(executor_, index, read.data(), bytes, written);
      written += bytes;
      read.clear();
      return status;
    };
    for (auto [begin, bytes] : runs) {
      while (bytes > 0) {
        const size_t held = read.size();
        const int64_t n = std::min(bytes, kReadChunk - static_cast<int64_t>(held));
        read.resize(held + static_cast<size_t>(n));
        absl::Status status = files_.ReadBytes(entry->first, begin, n, read.data() + held);
        if (status.ok() && static_cast<int64_t>(read.size()) == kReadChunk) status = flush();
        if (!status.ok()) return status;
        begin += n;
        bytes -= n;
      }
    }
    return read.empty() ? absl::OkStatus() : flush();
  }

  // Appends elements [begin, begin + count) of the open piece to wide_.
  absl::Status Read(int64_t begin, int64_t count) {
    const size_t before = wide_.size();
    wide_.resize(before + static_cast<size_t>(count));
    begin += piece_->begin * piece_row_;
    if (!piece_->transposed) return files_.Read(piece_name_, begin, count, wide_.data() + before);
    const int64_t in = piece_->dims[0], out = piece_->dims[1];
    if (transposed_.empty()) {
      transposed_.resize(static_cast<size_t>(in * out));
      if (absl::Status s = files_.Read(piece_name_, 0, in * out, transposed_.data()); !s.ok())
        return s;
    }
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = (begin + i) / in, column = (begin + i) % in;
      wide_[before + static_cast<size_t>(i)] = transposed_[static_cast<size_t>(column * out + row)];
    }
    return absl::OkStatus();
  }

  // Writes wide_ to the buffer from element *at on.
  absl::Status Store(int index, double add, int64_t* at) {
    const TensorSpec& spec = executor_.spec(index);
    const int64_t count = static_cast<int64_t>(wide_.size()), size = SizeOf(spec.dtype);
    if (add != 0) {
      for (float& value : wide_) value += static_cast<float>(add);
    }
    if (packer_.has_value()) {
      *at += count;
      const size_t bytes = wide_.size() * sizeof(float);
      std::memcpy(packer_->Append(bytes), wide_.data(), bytes);
      return packer_->PackRows(Writer(index));
    }
    const void* data = wide_.data();
    if (spec.dtype == DType::kF16) {
      absl::Status fits = ExpectF16(executor_.tensor_name(index), wide_.data(), count);
      if (!fits.ok()) return fits;
    }
    if (spec.dtype != DType::kF32) {
      narrow_.resize(static_cast<size_t>(count * size));
      FromF32(spec.dtype, wide_.data(), narrow_.data(), count);
      data = narrow_.data();
    }
    absl::Status status = loading_.Write(executor_, index, data, count * size, *at * size);
    *at += count;
    return status;
  }

  const WeightFiles& files_;
  const std::string& folder_;
  const WeightLoadOptions& loading_;
  Executor& executor_;
  InPlaceReads in_place_;
  std::set<std::string> used_;
  std::optional<WeightPacker> packer_;  // of the parameter being loaded, if it is packed
  // The open piece.
  const WeightSlice* piece_ = nullptr;
  std::string piece_name_;
  int64_t piece_row_ = 0, piece_elements_ = 0;
  std::vector<float> transposed_;  // the whole tensor, if it is transposed
  std::vector<float> wide_;
  std::vector<char> narrow_;
};

// The tensors that this rank's model expects in its files.
TensorShapes ExpectedTensors(const WeightMap& map, const Executor& executor) {
  TensorShapes shapes;
  for (const auto& [parameter, source] : map.sources) {
    for (const WeightSlice& piece : source.pieces) shapes[piece.tensor] = piece.dims;
  }
  for (int i = 0; i < executor.num_buffers(); ++i) {
    if (executor.buffer(i).kind() != v1::PARAMETER_SHARD) continue;
    const std::string& name = executor.tensor_name(i);
    if (map.sources.count(name) == 0) shapes[name] = executor.spec(i).global;
  }
  return shapes;
}

}  // namespace

absl::Status LoadWeights(const std::string& folder, const WeightMap& map, Executor& executor,
                         const WeightLoadOptions& loading) {
  const std::unique_ptr<FileSystem> own = loading.files == nullptr ? NewPosixFileSystem() : nullptr;
  absl::StatusOr<std::unique_ptr<WeightFiles>> files =
      OpenWeights(own != nullptr ? *own : *loading.files, folder, ExpectedTensors(map, executor));
  if (!files.ok()) return files.status();
  Loader loader(**files, folder, loading, executor);
  for (int i = 0; i < executor.num_buffers(); ++i) {
    if (executor.buffer(i).kind() != v1::PARAMETER_SHARD) continue;
    if (absl::Status s = loader.Load(i, map); !s.ok()) return s;
  }
  if (absl::Status s = loader.ReadInPlace(); !s.ok()) return s;
  return loader.CheckRest(map);
}

}  // namespace espalier
