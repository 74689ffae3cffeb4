#include "worker/weights/gguf_model.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "worker/weights/gguf.h"

namespace espalier {
namespace {

using Json = nlohmann::ordered_json;

// Frequencies of rotary embeddings are divided by these: how GGUF keeps Llama 3.1's scaling.
constexpr char kRopeFactors[] = "rope_freqs.weight";

struct Architecture {
  const char* gguf;
  const char* hf;          // "architectures"
  const char* model_type;  // "model_type"
  bool permuted;  // rows of q and k: pairs that turn together are neighbours, not half a head apart
};
constexpr Architecture kArchitectures[] = {{"llama", "LlamaForCausalLM", "llama", true},
                                           {"qwen2", "Qwen2ForCausalLM", "qwen2", false},
                                           {"qwen3", "Qwen3ForCausalLM", "qwen3", false}};

struct Name {
  const char* gguf;
  const char* hf;
};
constexpr Name kNames[] = {
    {"token_embd", "model.embed_tokens"}, {"output_norm", "model.norm"}, {"output", "lm_head"}};
// After "blk.N." and "model.layers.N.".
constexpr Name kLayerNames[] = {
    {"attn_norm", "input_layernorm"},    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},      {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"}, {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"}, {"ffn_norm", "post_attention_layernorm"},
    {"ffn_gate", "mlp.gate_proj"},       {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"}};

// A name that no table has stays: whoever wants no such tensor says so.
std::string HfName(const std::string& name) {
  std::string rest = name, prefix;
  if (name.rfind("blk.", 0) == 0) {
    const size_t dot = name.find('.', 4);
    if (dot == std::string::npos) return name;
    prefix = absl::StrCat("model.layers.", name.substr(4, dot - 4), ".");
    rest = name.substr(dot + 1);
  }
  const size_t dot = rest.rfind('.');
  if (dot == std::string::npos) return name;
  const std::string stem = rest.substr(0, dot), suffix = rest.substr(dot);
  const auto find = [&](const auto& table) -> std::string {
    for (const Name& entry : table) {
      if (stem == entry.gguf) return absl::StrCat(prefix, entry.hf, suffix);
    }
    return name;
  };
  return prefix.empty() ? find(kNames) : find(kLayerNames);
}

// Reads metadata by name; the first error sticks.
class Metadata {
 public:
  explicit Metadata(const GgufFile& file) : file_(file) {
    const std::string name = Text("general.architecture", "");
    for (const Architecture& a : kArchitectures) {
      if (name == a.gguf) architecture_ = &a;
    }
    if (architecture_ == nullptr && status_.ok()) {
      std::string accepted;
      for (const Architecture& a : kArchitectures) {
        absl::StrAppend(&accepted, accepted.empty() ? "" : ", ", a.gguf);
      }
      status_ =
          absl::UnimplementedError(absl::StrCat("'", file_.path(), "': general.architecture is '",
                                                name.substr(0, 60), "'; accepted: ", accepted));
    }
  }

  const absl::Status& status() const { return status_; }
  const Architecture& architecture() const { return *architecture_; }  // REQUIRES: status().ok()

  std::string Key(const std::string& name) const {
    return absl::StrCat(architecture_ != nullptr ? architecture_->gguf : "", ".", name);
  }
  bool Has(const std::string& key) const { return file_.metadata().count(key) > 0; }

  int64_t Size(const std::string& key, int64_t otherwise) {
    const auto found = file_.metadata().find(key);
    if (found == file_.metadata().end()) return otherwise;
    const int64_t* value = std::get_if<int64_t>(&found->second);
    if (value == nullptr || *value < 1 || *value > (int64_t{1} << 30)) {
      Fail(key, "an integer from 1 to 2^30");
      return 1;
    }
    return *value;
  }
  int64_t Size(const std::string& key) {
    if (!Has(key)) Fail(key, "a number: it is missing");
    return Size(key, 1);
  }
  double Number(const std::string& key, double otherwise) {
    const auto found = file_.metadata().find(key);
    if (found == file_.metadata().end()) return otherwise;
    if (const double* value = std::get_if<double>(&found->second)) return *value;
    if (const int64_t* value = std::get_if<int64_t>(&found->second)) {
      return static_cast<double>(*value);
    }
    Fail(key, "a number");
    return otherwise;
  }
  std::string Text(const std::string& key, const std::string& otherwise) {
    const auto found = file_.metadata().find(key);
    if (found == file_.metadata().end()) return otherwise;
    if (const std::string* value = std::get_if<std::string>(&found->second)) return *value;
    Fail(key, "a string");
    return otherwise;
  }

  void Fail(const std::string& key, const std::string& accepted) {
    if (!status_.ok()) return;
    status_ = absl::InvalidArgumentError(
        absl::StrCat("'", file_.path(), "': metadata '", key, "' must be ", accepted));
  }

 private:
  const GgufFile& file_;
  absl::Status status_;
  const Architecture* architecture_ = nullptr;
};

class GgufWeights : public WeightFiles {
 public:
  // REQUIRES: metadata.status().ok()
  absl::Status Take(std::unique_ptr<GgufFile> file, Metadata& metadata) {
    file_ = std::move(file);
    const int64_t heads = metadata.Size(metadata.Key("attention.head_count"));
    const int64_t kv_heads = metadata.Size(metadata.Key("attention.head_count_kv"), heads);
    const bool permuted = metadata.architecture().permuted;
    if (!metadata.status().ok()) return metadata.status();
    for (const auto& [name, tensor] : file_->tensors()) {
      if (name == kRopeFactors) continue;  // in the configuration
      const std::string hf = HfName(name);
      Source source{&tensor, 1};
      if (permuted && hf.find("self_attn.q_proj.") != std::string::npos) source.heads = heads;
      if (permuted && hf.find("self_attn.k_proj.") != std::string::npos) source.heads = kv_heads;
      source.permuted =
          source.heads > 1 || (permuted && (hf.find(".q_proj.") != std::string::npos ||
                                            hf.find(".k_proj.") != std::string::npos));
      const int64_t rows = tensor.dims.empty() ? 1 : tensor.dims[0];
      if (source.permuted && rows % (2 * source.heads) != 0) {
        return absl::InvalidArgumentError(absl::StrCat("'", file_->path(), "': tensor '", hf,
                                                       "' has ", rows, " rows for ", source.heads,
                                                       " heads"));
      }
      sources_[hf] = source;
      if (!tensors_.try_emplace(hf, Tensor{tensor.dims, tensor.type->name, file_->path()}).second) {
        return absl::InvalidArgumentError(
            absl::StrCat("'", file_->path(), "': two tensors stand for '", hf, "'"));
      }
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
    if (!source.permuted) return file_->Read(*source.tensor, begin, count, out);
    const Dims& dims = source.tensor->dims;
    const int64_t row_size = NumElements(dims) / dims[0], head = dims[0] / source.heads;
    while (count > 0) {
      // Row r of a head, of pair r % (head / 2), is kept next to its other half.
      const int64_t row = begin / row_size, r = row % head;
      const int64_t from = row - r + r % (head / 2) * 2 + r / (head / 2);
      const int64_t within = begin % row_size, here = std::min(count, row_size - within);
      absl::Status status = file_->Read(*source.tensor, from * row_size + within, here, out);
      if (!status.ok()) return status;
      begin += here;
      out += here;
      count -= here;
    }
    return absl::OkStatus();
  }

  std::optional<Place> PlaceOf(const std::string& name) const override {
    const auto found = sources_.find(name);
    if (found == sources_.end() || found->second.permuted) return std::nullopt;
    const GgufFile::Tensor& tensor = *found->second.tensor;
    if (tensor.type->dtype == DType::kInvalid) return std::nullopt;
    return Place{file_->file(), tensor.offset, tensor.type->dtype};
  }

 private:
  struct Source {
    const GgufFile::Tensor* tensor;
    int64_t heads;
    bool permuted = false;
  };

  std::unique_ptr<GgufFile> file_;
  std::map<std::string, Tensor> tensors_;
  std::map<std::string, Source> sources_;
};

// "rope_scaling" of the file; null if there is none.
absl::StatusOr<Json> RopeScaling(const GgufFile& file, Metadata& metadata) {
  const auto factors = file.tensors().find(kRopeFactors);
  if (factors != file.tensors().end()) {
    const int64_t count = NumElements(factors->second.dims);
    if (count > 1024) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", file.path(), "': ", kRopeFactors, " has ", count, " elements"));
    }
    std::vector<float> values(static_cast<size_t>(count));
    absl::Status status = file.Read(factors->second, 0, count, values.data());
    if (!status.ok()) return status;
    return Json{{"rope_type", "longrope"},
                {"short_factor", values},
                {"long_factor", values},
                {"attention_factor", 1.0}};
  }
  const std::string type = metadata.Text(metadata.Key("rope.scaling.type"), "none");
  if (type == "none") return Json();
  Json scaling = {{"rope_type", type},
                  {"factor", metadata.Number(metadata.Key("rope.scaling.factor"), 1)}};
  const std::string original = metadata.Key("rope.scaling.original_context_length");
  if (metadata.Has(original)) {
    scaling["original_max_position_embeddings"] = metadata.Size(original);
  }
  return scaling;  // types that are not known are refused by whoever reads the configuration
}

}  // namespace

absl::StatusOr<std::unique_ptr<WeightFiles>> OpenGgufModel(FileSystem& files,
                                                           const std::string& path) {
  absl::StatusOr<std::unique_ptr<GgufFile>> file = GgufFile::Open(files, path);
  if (!file.ok()) return file.status();
  Metadata metadata(**file);
  if (!metadata.status().ok()) return metadata.status();
  auto weights = std::make_unique<GgufWeights>();
  // The metadata's reader looks at the file, which stays where it is.
  absl::Status status = weights->Take(*std::move(file), metadata);
  if (!status.ok()) return status;
  return weights;
}

absl::StatusOr<std::string> GgufConfig(FileSystem& files, const std::string& path) {
  absl::StatusOr<std::unique_ptr<GgufFile>> opened = GgufFile::Open(files, path);
  if (!opened.ok()) return opened.status();
  const GgufFile& file = **opened;
  Metadata m(file);
  if (!m.status().ok()) return m.status();
  if (m.Has(m.Key("expert_count")) && m.Number(m.Key("expert_count"), 0) != 0) {
    return absl::UnimplementedError(
        absl::StrCat("'", path, "': mixtures of experts are read from safetensors, not from GGUF"));
  }
  const auto table = file.tensors().find("token_embd.weight");
  if (table == file.tensors().end() || table->second.dims.size() != 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", path, "': there is no matrix 'token_embd.weight'"));
  }
  Json config;
  config["architectures"] = {m.architecture().hf};
  config["model_type"] = m.architecture().model_type;
  config["vocab_size"] = table->second.dims[0];
  config["hidden_size"] = m.Size(m.Key("embedding_length"));
  config["intermediate_size"] = m.Size(m.Key("feed_forward_length"));
  config["num_hidden_layers"] = m.Size(m.Key("block_count"));
  const int64_t heads = m.Size(m.Key("attention.head_count"));
  config["num_attention_heads"] = heads;
  config["num_key_value_heads"] = m.Size(m.Key("attention.head_count_kv"), heads);
  if (m.Has(m.Key("attention.key_length"))) {
    config["head_dim"] = m.Size(m.Key("attention.key_length"));
  } else if (m.Has(m.Key("rope.dimension_count"))) {
    config["head_dim"] = m.Size(m.Key("rope.dimension_count"));
  }
  config["rms_norm_eps"] = m.Number(m.Key("attention.layer_norm_rms_epsilon"), 1e-5);
  config["rope_theta"] = m.Number(m.Key("rope.freq_base"), 10000);
  config["max_position_embeddings"] = m.Size(m.Key("context_length"));
  absl::StatusOr<Json> scaling = RopeScaling(file, m);
  if (!scaling.ok()) return scaling.status();
  config["rope_scaling"] = *std::move(scaling);
  config["tie_word_embeddings"] = file.tensors().count("output.weight") == 0;
  const bool biased = file.tensors().count("blk.0.attn_q.bias") > 0;
  if (m.architecture().permuted) config["attention_bias"] = biased;
  if (m.Has("tokenizer.ggml.eos_token_id")) {
    const auto& value = file.metadata().at("tokenizer.ggml.eos_token_id");
    const int64_t* id = std::get_if<int64_t>(&value);
    if (id != nullptr) config["eos_token_id"] = *id;
  }
  if (!m.status().ok()) return m.status();
  return config.dump(2, ' ', true, Json::error_handler_t::replace);
}

}  // namespace espalier
