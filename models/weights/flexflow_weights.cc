#include "models/weights/flexflow_weights.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "ops/cpu/dtype/convert.h"

namespace espalier {
namespace {

constexpr int64_t kGroup = 32;
constexpr char kMinima[] = "_offset", kScales[] = "_scale";
// A copy of the embedding table.
constexpr char kCopy[] = "embed_tokens_weight_lm_head";

// A tensor's names in FlexFlow's older and newer converters.
std::vector<std::string> NamesOf(const std::string& tensor) {
  std::string old = absl::StrReplaceAll(tensor, {{".", "_"}});
  // The order matters: later replacements must not match the results of earlier ones.
  for (const auto& [from, to] : std::initializer_list<std::pair<const char*, const char*>>{
           {"self_attn", "attention"},
           {"q_proj", "wq"},
           {"k_proj", "wk"},
           {"v_proj", "wv"},
           {"o_proj", "wo"},
           {"mlp", "feed_forward"},
           {"gate_proj", "w1"},
           {"down_proj", "w2"},
           {"up_proj", "w3"},
           {"input_layernorm", "attention_norm"},
           {"post_attention_layernorm", "ffn_norm"},
           {"embed_tokens", "tok_embeddings"},
           {"lm_head", "output"},
           {"model_", ""}}) {
    old = absl::StrReplaceAll(old, {{from, to}});
  }
  return {old, absl::StrReplaceAll(tensor, {{"model.", ""}})};
}

// Location of numbers of one kind.
struct Numbers {
  std::shared_ptr<const ReadableFile> file;
  int64_t offset = 0;
};

// A tensor's files. bits 0: numbers of `dtype`; otherwise q with minima and scales of `dtype`.
struct Source {
  int bits = 0;  // per q in the file: 8 or 4
  DType dtype = DType::kF32;
  int64_t rows = 0, columns = 0;
  Numbers data, minima, scales;
};

class FlexFlowWeights : public WeightFiles {
 public:
  const std::map<std::string, Tensor>& tensors() const override { return tensors_; }

  void Add(const std::string& name, Tensor tensor, Source source) {
    tensors_[name] = std::move(tensor);
    sources_[name] = std::move(source);
  }
  void AddUnknown(const std::string& name, const std::string& path) {
    tensors_[name] = {{}, "raw", path, false};
  }

  absl::Status Read(const std::string& name, int64_t begin, int64_t count,
                    float* out) const override {
    const auto found = sources_.find(name);
    if (found == sources_.end()) {
      return absl::NotFoundError(absl::StrCat("there is no tensor '", name, "'"));
    }
    const Source& source = found->second;
    if (source.bits == 0) return ReadNumbers(source.dtype, source.data, begin, count, out);
    for (int64_t at = begin; at < begin + count;) {
      // Within a row, whose minima and scales are contiguous.
      const int64_t row = at / source.columns, column = at % source.columns;
      const int64_t here = std::min(source.columns - column, begin + count - at);
      absl::Status status = ReadRow(name, source, row, column, here, out);
      if (!status.ok()) return status;
      at += here;
      out += here;
    }
    return absl::OkStatus();
  }

  std::optional<Place> PlaceOf(const std::string& name) const override {
    const auto found = sources_.find(name);
    if (found == sources_.end() || found->second.bits != 0) return std::nullopt;
    return Place{found->second.data.file, 0, found->second.dtype};
  }

 private:
  static absl::Status ReadNumbers(DType dtype, const Numbers& from, int64_t begin, int64_t count,
                                  float* out) {
    const int64_t size = static_cast<int64_t>(SizeOf(dtype));
    if (dtype == DType::kF32) return from.file->Read(from.offset + begin * size, count * size, out);
    std::vector<char> raw(static_cast<size_t>(count * size));
    absl::Status status = from.file->Read(from.offset + begin * size, count * size, raw.data());
    if (status.ok()) ToF32(dtype, raw.data(), out, count);
    return status;
  }

  absl::Status ReadRow(const std::string& name, const Source& source, int64_t row, int64_t column,
                       int64_t count, float* out) const {
    const int64_t group = row / kGroup * source.columns + column;
    std::vector<float> minima(static_cast<size_t>(count)), scales(static_cast<size_t>(count));
    absl::Status status = ReadNumbers(source.dtype, source.minima, group, count, minima.data());
    if (status.ok()) status = ReadNumbers(source.dtype, source.scales, group, count, scales.data());
    const int64_t first = row * source.columns + column, in_byte = 8 / source.bits;
    const int64_t byte = first / in_byte, last = (first + count - 1) / in_byte;
    std::vector<uint8_t> q(static_cast<size_t>(last - byte + 1));
    if (status.ok()) {
      status = source.data.file->Read(source.data.offset + byte, static_cast<int64_t>(q.size()),
                                      q.data());
    }
    if (!status.ok()) return status;
    for (int64_t i = 0; i < count; ++i) {
      const size_t at = static_cast<size_t>((first + i) / in_byte - byte);
      const int value = source.bits == 8             ? q[at]
                        : (first + i) % in_byte == 0 ? q[at] >> 4
                                                     : q[at] & 15;
      const float scale = scales[static_cast<size_t>(i)], minimum = minima[static_cast<size_t>(i)];
      // Infinite if all weights of the group equal its minimum.
      if (!(scale > 0) || !std::isfinite(minimum)) {
        return absl::InvalidArgumentError(absl::StrCat(
            "'", tensors_.at(name).file, "': the group of element ", first + i, " has scale ",
            scale, " and minimum ", minimum, "; a scale must be positive, a minimum finite"));
      }
      out[i] = static_cast<float>(value) / scale + minimum;
    }
    return absl::OkStatus();
  }

  std::map<std::string, Tensor> tensors_;
  std::map<std::string, Source> sources_;
};

class Folder {
 public:
  Folder(FileSystem& files, const std::string& path, const std::vector<std::string>& names)
      : files_(files), path_(path), names_(names) {}

  bool Has(const std::string& name) const {
    return std::find(names_.begin(), names_.end(), name) != names_.end();
  }

  absl::StatusOr<std::shared_ptr<const ReadableFile>> Open(const std::string& name) const {
    absl::StatusOr<std::unique_ptr<ReadableFile>> file = files_.Open(JoinPath(path_, name));
    if (!file.ok()) return file.status();
    return std::shared_ptr<const ReadableFile>(*std::move(file));
  }

  // Deduces the layout of file `name`, a tensor of this shape, from its files' sizes.
  absl::StatusOr<Source> Find(const std::string& name, const Dims& dims,
                              WeightFiles::Tensor* tensor) const {
    Source source;
    absl::StatusOr<std::shared_ptr<const ReadableFile>> data = Open(name);
    if (!data.ok()) return data.status();
    source.data.file = *data;
    const int64_t elements = NumElements(dims), bytes = (*data)->size();
    const bool matrix = dims.size() == 2;
    source.rows = matrix ? dims[0] : 1;
    source.columns = matrix ? dims[1] : elements;
    const int64_t groups = (source.rows + kGroup - 1) / kGroup * source.columns;
    const int64_t padded = groups * kGroup;
    if (matrix && Has(name + kMinima) && Has(name + kScales)) {
      absl::StatusOr<std::shared_ptr<const ReadableFile>> minima = Open(name + kMinima);
      if (!minima.ok()) return minima.status();
      absl::StatusOr<std::shared_ptr<const ReadableFile>> scales = Open(name + kScales);
      if (!scales.ok()) return scales.status();
      source.minima.file = *minima;
      source.scales.file = *scales;
      source.bits = 8;
      source.dtype = (*minima)->size() == 4 * groups ? DType::kF32 : DType::kF16;
      const int64_t size = groups * static_cast<int64_t>(SizeOf(source.dtype));
      if (bytes != padded || (*minima)->size() != size || (*scales)->size() != size) {
        return Bad(name, dims,
                   absl::StrCat(bytes, ", ", (*minima)->size(), " and ", (*scales)->size(),
                                " bytes of values, offsets and scales; expected ", padded,
                                " and twice ", 4 * groups, " or ", 2 * groups));
      }
    } else if (bytes == 4 * elements || bytes == 2 * elements) {
      source.dtype = bytes == 4 * elements ? DType::kF32 : DType::kF16;
    } else {
      for (const int bits : {8, 4}) {
        for (const DType dtype : {DType::kF32, DType::kF16}) {
          const int64_t values = padded * bits / 8;
          const int64_t meta = groups * static_cast<int64_t>(SizeOf(dtype));
          if (!matrix || padded != elements || bytes != values + 2 * meta) continue;
          source.bits = bits;
          source.dtype = dtype;
          source.minima = {*data, values};
          source.scales = {*data, values + meta};
        }
      }
      if (source.bits == 0) {
        return Bad(name, dims,
                   absl::StrCat(bytes, " bytes; expected ", 4 * elements, " (f32), ", 2 * elements,
                                " (f16), or a compressed matrix"));
      }
    }
    *tensor = {dims,
               source.bits == 0 ? (source.dtype == DType::kF32 ? "F32" : "F16")
                                : absl::StrCat("compressed, ", source.bits, " bits"),
               JoinPath(path_, name)};
    return source;
  }

 private:
  absl::Status Bad(const std::string& name, const Dims& dims, const std::string& what) const {
    return absl::InvalidArgumentError(absl::StrCat("'", JoinPath(path_, name), "': it should hold ",
                                                   ToString(dims), " and has ", what,
                                                   "; does config.json belong to it?"));
  }

  FileSystem& files_;
  const std::string& path_;
  const std::vector<std::string>& names_;
};

}  // namespace

bool IsFlexFlowWeight(const std::string& name) {
  if (absl::StrContains(name, ".safetensors")) return false;
  for (const char* const start : {"layers_", "layers.", "tok_embeddings", "embed_tokens",
                                  "norm_weight", "norm.weight", "output_weight", "lm_head"}) {
    if (absl::StartsWith(name, start)) return true;
  }
  return false;
}

bool IsFlexFlowFolder(const std::vector<std::string>& names) {
  return std::any_of(names.begin(), names.end(), [](const std::string& name) {
    return IsFlexFlowWeight(name) &&
           (absl::StartsWith(name, "layers") || absl::StrContains(name, "embed"));
  });
}

absl::StatusOr<std::unique_ptr<WeightFiles>> OpenFlexFlow(FileSystem& files,
                                                          const std::string& folder,
                                                          const std::vector<std::string>& names,
                                                          const TensorShapes& shapes) {
  const Folder in(files, folder, names);
  auto weights = std::make_unique<FlexFlowWeights>();
  std::set<std::string> used = {kCopy};
  for (const auto& [tensor, dims] : shapes) {
    for (const std::string& name : NamesOf(tensor)) {
      if (!in.Has(name)) continue;
      WeightFiles::Tensor found;
      absl::StatusOr<Source> source = in.Find(name, dims, &found);
      if (!source.ok()) return source.status();
      weights->Add(tensor, std::move(found), *std::move(source));
      used.insert({name, name + kMinima, name + kScales});
      break;
    }
  }
  for (const std::string& name : names) {
    if (IsFlexFlowWeight(name) && used.count(name) == 0) {
      weights->AddUnknown(name, JoinPath(folder, name));
    }
  }
  return weights;
}

}  // namespace espalier
