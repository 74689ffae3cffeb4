#include "models/weights/gguf_model.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "models/weights/gguf.h"
#include "models/weights/gguf_architectures.h"
#include "models/weights/gguf_metadata.h"

namespace espalier {
namespace {

class GgufWeights : public WeightFiles {
 public:
  explicit GgufWeights(std::unique_ptr<GgufFile> file) : file_(std::move(file)) {}

  absl::Status Take() {
    GgufMetadata metadata(*file_);
    const absl::StatusOr<const GgufArchitecture*> architecture = FindGgufArchitecture(metadata);
    if (!architecture.ok()) return architecture.status();
    heads_ = metadata.Size("attention.head_count");
    kv_heads_ = metadata.Size("attention.head_count_kv", heads_);
    if (!metadata.status().ok()) return metadata.status();
    if ((*architecture)->has_experts()) {
      const absl::StatusOr<GgufExperts> experts = ReadGgufExperts(metadata);
      if (!experts.ok()) return experts.status();
      absl::Status status = TakeExperts(**architecture, *experts);
      if (!status.ok()) return status;
    }
    for (const auto& [name, tensor] : file_->tensors()) {
      const bool is_configuration =
          name == kGgufRopeFactors || name == kGgufShortFactors || name == kGgufLongFactors;
      if (is_configuration || taken_.count(name) > 0) continue;
      const GgufHfName hf = HfNameOf(**architecture, name);
      absl::Status status = Add(hf.name, name, {&tensor, tensor.dims, TransformOf(hf, tensor)});
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  const std::map<std::string, Tensor>& tensors() const override { return tensors_; }

  absl::Status Read(const std::string& name, int64_t begin, int64_t count,
                    float* out) const override {
    const auto found = sources_.find(name);
    if (found == sources_.end()) {
      return absl::NotFoundError(absl::StrCat("there is no tensor '", name, "'"));
    }
    const Source& source = found->second;
    const int64_t all = NumElements(source.dims);
    if (begin < 0 || count < 0 || begin > all || count > all - begin) {
      return absl::OutOfRangeError(
          absl::StrCat("'", file_->path_of(*source.tensor), "': read beyond tensor '", name, "'"));
    }
    switch (source.change) {
      case GgufWeightTransform::kTransposed:
        return ReadTransposed(source, begin, count, out);
      case GgufWeightTransform::kPermutedQuery:
      case GgufWeightTransform::kPermutedKey:
      case GgufWeightTransform::kFalconFusedQkv:
        return ReadRows(source, NumElements(source.dims) / source.dims[0], begin, count,
                        [&](int64_t from, int64_t here) {
                          absl::Status status = file_->Read(*source.tensor, from, here, out);
                          out += here;
                          return status;
                        });
      case GgufWeightTransform::kNone:
      case GgufWeightTransform::kPlusOne:
        break;
    }
    absl::Status status = file_->Read(*source.tensor, source.first + begin, count, out);
    if (source.change == GgufWeightTransform::kPlusOne) {
      for (int64_t i = 0; i < count; ++i) out[i] -= 1;
    }
    return status;
  }

  bool HasQ8Blocks(const std::string& name) const override {
    const auto found = sources_.find(name);
    if (found == sources_.end()) return false;
    const Source& source = found->second;
    const bool by_rows = source.change != GgufWeightTransform::kTransposed &&
                         source.change != GgufWeightTransform::kPlusOne;
    return by_rows && source.tensor->type->id == kGgufQ8_0 && source.dims.size() == 2 &&
           source.dims[1] % source.tensor->type->elements == 0;
  }

  absl::Status ReadQ8Blocks(const std::string& name, int64_t begin, int64_t count,
                            uint8_t* out) const override {
    if (!HasQ8Blocks(name)) return WeightFiles::ReadQ8Blocks(name, begin, count, out);
    const Source& source = sources_.at(name);
    const int64_t elements = source.tensor->type->elements, bytes = source.tensor->type->bytes;
    const int64_t row_blocks = source.dims[1] / elements;
    if (begin < 0 || count < 0 || begin > row_blocks * source.dims[0] - count) {
      return absl::OutOfRangeError(
          absl::StrCat("'", file_->path_of(*source.tensor), "': read beyond tensor '", name, "'"));
    }
    if (source.change == GgufWeightTransform::kNone) {
      return file_->ReadBlocks(*source.tensor, source.first / elements + begin, count, out);
    }
    return ReadRows(source, row_blocks, begin, count, [&](int64_t from, int64_t here) {
      absl::Status status = file_->ReadBlocks(*source.tensor, from, here, out);
      out += here * bytes;
      return status;
    });
  }

  std::optional<Place> PlaceOf(const std::string& name) const override {
    const auto found = sources_.find(name);
    if (found == sources_.end() || found->second.change != GgufWeightTransform::kNone)
      return std::nullopt;
    const Source& source = found->second;
    const GgufType& type = *source.tensor->type;
    if (type.dtype == DType::kInvalid) return std::nullopt;
    return Place{file_->file_of(*source.tensor), source.tensor->offset + source.first * type.bytes,
                 type.dtype};
  }

 private:
  struct Source {
    const GgufFile::Tensor* tensor;
    Dims dims;  // Hugging Face's
    GgufWeightTransform change = GgufWeightTransform::kNone;
    int64_t first = 0;  // its first element in the tensor
  };

  static GgufWeightTransform TransformOf(const GgufHfName& hf, const GgufFile::Tensor& tensor) {
    // Biases of transposed matrices are not transposed.
    const bool changed = hf.change != GgufWeightTransform::kTransposed || tensor.dims.size() == 2;
    return changed ? hf.change : GgufWeightTransform::kNone;
  }

  absl::Status Wrong(const std::string& tensor, const std::string& what) const {
    return absl::InvalidArgumentError(
        absl::StrCat("'", file_->path(), "': tensor '", tensor, "' ", what));
  }

  absl::Status Add(const std::string& hf, const std::string& name, Source source) {
    Dims& dims = source.dims;
    if (source.change == GgufWeightTransform::kTransposed) std::swap(dims[0], dims[1]);
    const int64_t rows = dims.empty() ? 1 : dims[0];
    int64_t parts = 1;
    if (source.change == GgufWeightTransform::kPermutedQuery) parts = 2 * heads_;
    if (source.change == GgufWeightTransform::kPermutedKey) parts = 2 * kv_heads_;
    if (source.change == GgufWeightTransform::kFalconFusedQkv) {
      parts = heads_ + 2 * kv_heads_;
      if (heads_ % kv_heads_ != 0) parts = rows + 1;
    }
    if (rows % parts != 0) {
      return Wrong(name, absl::StrCat("has ", rows, " rows for ", heads_, " heads and ", kv_heads_,
                                      " of keys and values"));
    }
    if (!tensors_
             .try_emplace(hf,
                          Tensor{dims, source.tensor->type->name, file_->path_of(*source.tensor)})
             .second) {
      return Wrong(name, absl::StrCat("is not the only one that stands for '", hf, "'"));
    }
    sources_[hf] = std::move(source);
    return absl::OkStatus();
  }

  // Router and experts of all layers, which are required.
  absl::Status TakeExperts(const GgufArchitecture& architecture, const GgufExperts& experts) {
    const GgufExpertNames& names = architecture.experts;
    for (int64_t layer = 0; layer < experts.layers; ++layer) {
      const std::string prefix = absl::StrCat("blk.", layer, ".");
      const std::string router = absl::StrCat(prefix, "ffn_gate_inp.weight");
      const auto gate = file_->tensors().find(router);
      if (gate == file_->tensors().end()) return Wrong(router, "is missing");
      if (gate->second.dims.size() != 2 || gate->second.dims[0] != experts.count) {
        return Wrong(router,
                     absl::StrCat("has shape ", ToString(gate->second.dims), "; accepted: [",
                                  experts.count, ", ...], one row for each expert"));
      }
      for (const auto& [part, name] :
           {std::pair("ffn_gate", names.gate), {"ffn_up", names.up}, {"ffn_down", names.down}}) {
        const std::string hf = absl::StrCat(architecture.layers, layer, ".", names.experts, ".");
        absl::Status status =
            TakePart(prefix + part, experts.count, hf, absl::StrCat(".", name, ".weight"));
        if (!status.ok()) return status;
      }
    }
    return absl::OkStatus();
  }

  // "blk.N.ffn_up_exps.weight", [experts, out, in], or "blk.N.ffn_up.E.weight" for each expert.
  absl::Status TakePart(const std::string& part, int64_t count, const std::string& before,
                        const std::string& behind) {
    const std::string merged = part + "_exps.weight";
    const auto all = file_->tensors().find(merged);
    if (all != file_->tensors().end()) {
      const Dims& dims = all->second.dims;
      if (dims.size() != 3 || dims[0] != count) {
        return Wrong(merged, absl::StrCat("has shape ", ToString(dims), "; accepted: [", count,
                                          ", out, in], one matrix for each expert"));
      }
      taken_.insert(merged);
    }
    for (int64_t expert = 0; expert < count; ++expert) {
      const std::string hf = absl::StrCat(before, expert, behind);
      absl::Status status;
      if (all != file_->tensors().end()) {
        const Dims dims = {all->second.dims[1], all->second.dims[2]};
        status = Add(hf, merged,
                     {&all->second, dims, GgufWeightTransform::kNone, expert * NumElements(dims)});
      } else {
        const std::string name = absl::StrCat(part, ".", expert, ".weight");
        const auto one = file_->tensors().find(name);
        if (one == file_->tensors().end()) {
          return Wrong(expert == 0 ? merged : name, "is missing");
        }
        taken_.insert(name);
        status = Add(hf, name, {&one->second, one->second.dims});
      }
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  // Returns the file's row for row `row` of Hugging Face's tensor.
  int64_t RowInFile(const Source& source, int64_t row) const {
    const int64_t rows = source.dims[0];
    if (source.change != GgufWeightTransform::kFalconFusedQkv) {
      const int64_t head =
          rows / (source.change == GgufWeightTransform::kPermutedQuery ? heads_ : kv_heads_);
      const int64_t r = row % head;
      return row - r + r % (head / 2) * 2 + r / (head / 2);
    }
    // A group: its q heads, then one k head and one v head.
    const int64_t size = rows / (heads_ + 2 * kv_heads_), queries = heads_ / kv_heads_;
    const int64_t group = row / ((queries + 2) * size);
    const int64_t head = row / size % (queries + 2), within = row % size;
    const int64_t in_file = head < queries    ? group * queries + head
                            : head == queries ? heads_ + group
                                              : heads_ + kv_heads_ + group;
    return in_file * size + within;
  }

  // Calls read(from, here) for the pieces of [begin, begin + count) that lie together in the file,
  // in order; all numbers count elements, or blocks, of which a row has `row_size`.
  template <typename Read>
  absl::Status ReadRows(const Source& source, int64_t row_size, int64_t begin, int64_t count,
                        Read read) const {
    while (count > 0) {
      const int64_t within = begin % row_size, here = std::min(count, row_size - within);
      const int64_t from = RowInFile(source, begin / row_size) * row_size + within;
      absl::Status status = read(from, here);
      if (!status.ok()) return status;
      begin += here;
      count -= here;
    }
    return absl::OkStatus();
  }

  // Reads the file row by row; each row is a column here. A reader of the whole matrix reads the
  // file once.
  absl::Status ReadTransposed(const Source& source, int64_t begin, int64_t count,
                              float* out) const {
    if (count == 0) return absl::OkStatus();
    const int64_t in = source.dims[0], columns = source.dims[1];
    const int64_t first = begin / columns, last = (begin + count - 1) / columns;
    std::vector<float> column(static_cast<size_t>(last - first + 1));
    for (int64_t c = 0; c < columns; ++c) {
      absl::Status status =
          file_->Read(*source.tensor, c * in + first, last - first + 1, column.data());
      if (!status.ok()) return status;
      for (int64_t row = first; row <= last; ++row) {
        const int64_t at = row * columns + c - begin;
        if (at >= 0 && at < count) out[at] = column[static_cast<size_t>(row - first)];
      }
    }
    return absl::OkStatus();
  }

  std::unique_ptr<GgufFile> file_;
  int64_t heads_ = 1, kv_heads_ = 1;
  std::map<std::string, Tensor> tensors_;
  std::map<std::string, Source> sources_;
  std::set<std::string> taken_;  // tensors that experts are made of
};

}  // namespace

absl::StatusOr<std::unique_ptr<WeightFiles>> OpenGgufModel(FileSystem& files,
                                                           const std::string& path) {
  absl::StatusOr<std::unique_ptr<GgufFile>> file = GgufFile::Open(files, path);
  if (!file.ok()) return file.status();
  auto weights = std::make_unique<GgufWeights>(*std::move(file));
  absl::Status status = weights->Take();
  if (!status.ok()) return status;
  return weights;
}

}  // namespace espalier
