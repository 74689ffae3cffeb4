// Converts a GGUF file's metadata to the config.json of the Hugging Face model.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "models/weights/gguf.h"
#include "models/weights/gguf_architectures.h"
#include "models/weights/gguf_eos.h"
#include "models/weights/gguf_metadata.h"
#include "models/weights/gguf_model.h"

namespace espalier {
namespace {

using Json = nlohmann::ordered_json;

bool HasTensor(const GgufMetadata& m, const std::string& name) {
  return m.file().tensors().count(name) > 0;
}

// Returns a tensor of factors, or null.
Json Factors(GgufMetadata& m, const std::string& name) {
  const auto found = m.file().tensors().find(name);
  if (found == m.file().tensors().end()) return Json();
  const int64_t count = NumElements(found->second.dims);
  if (count > 1024) {
    m.Fail(absl::InvalidArgumentError(absl::StrCat("'", m.file().path(), "': tensor '", name,
                                                   "' has ", count, " elements; accepted: 1024")));
    return Json();
  }
  std::vector<float> values(static_cast<size_t>(count));
  m.Fail(m.file().Read(found->second, 0, count, values.data()));
  return values;
}

// Returns the file's "rope_scaling", or null.
Json RopeScaling(GgufMetadata& m) {
  const std::string original = "rope.scaling.original_context_length";
  const std::string attention = "rope.scaling.attn_factor";
  const bool is_longrope = HasTensor(m, kGgufShortFactors);
  // llama.cpp multiplies by them for any scaling type; Hugging Face only for longrope.
  for (const std::string& key : {std::string("rope.scaling.yarn_attn_factor"),
                                 std::string("rope.scaling.yarn_ext_factor"), attention}) {
    if (m.Number(key, 1) == 1 || (is_longrope && key == attention)) continue;
    m.Fail(absl::UnimplementedError(
        absl::StrCat("'", m.file().path(), "': metadata '", m.Key(key), "' is set; accepted: 1")));
  }
  // Llama 3.1's scaling: factors independent of length.
  if (Json factors = Factors(m, kGgufRopeFactors); !factors.is_null()) {
    return {{"rope_type", "longrope"},
            {"short_factor", factors},
            {"long_factor", factors},
            {"attention_factor", 1.0}};
  }
  if (Json factors = Factors(m, kGgufShortFactors); !factors.is_null()) {
    Json scaling = {{"rope_type", "longrope"},
                    {"short_factor", std::move(factors)},
                    {"long_factor", Factors(m, kGgufLongFactors)},
                    {"original_max_position_embeddings", m.Size(original)}};
    if (m.Has(attention)) scaling["attention_factor"] = m.Number(attention, 1);
    return scaling;
  }
  // Older files have the factor under another key without a type, which llama.cpp reads as linear.
  const double factor = m.Number("rope.scaling.factor", m.Number("rope.scale_linear", 0));
  std::string type = m.Text("rope.scaling.type", factor == 0 ? "none" : "linear");
  if (type == "linear" && factor == 0) type = "none";
  if (type == "none") return Json();
  Json scaling = {{"rope_type", type}, {"factor", factor == 0 ? 1 : factor}};
  if (m.Has(original)) scaling["original_max_position_embeddings"] = m.Size(original);
  for (const auto& [key, field] : {std::pair("rope.scaling.yarn_beta_fast", "beta_fast"),
                                   {"rope.scaling.yarn_beta_slow", "beta_slow"}}) {
    if (m.Has(key)) scaling[field] = m.Number(key, 0);
  }
  return scaling;  // the configuration's reader rejects unknown types
}

// Fields common to LLaMA-like models.
void AddDecoder(GgufMetadata& m, Json* config) {
  Json& c = *config;
  c["hidden_size"] = m.Size("embedding_length");
  c["intermediate_size"] = m.Size("feed_forward_length");
  c["num_hidden_layers"] = m.Size("block_count");
  const int64_t heads = m.Size("attention.head_count");
  c["num_attention_heads"] = heads;
  c["num_key_value_heads"] = m.Size("attention.head_count_kv", heads);
  if (m.Has("attention.key_length")) c["head_dim"] = m.Size("attention.key_length");
  c["rms_norm_eps"] = m.Number("attention.layer_norm_rms_epsilon", 1e-5);
  c["rope_theta"] = m.Number("rope.freq_base", 10000);
  c["max_position_embeddings"] = m.Size("context_length");
  c["rope_scaling"] = RopeScaling(m);
}

constexpr char kRotaryDimensions[] = "rope.dimension_count";

// Partial rotary factor: a fraction whose product with head_dim is at least the file's dimension.
void AddPartialRotary(int64_t turned, int64_t head_dim, Json* config) {
  double part = static_cast<double>(turned) / static_cast<double>(head_dim);
  if (part * static_cast<double>(head_dim) < static_cast<double>(turned)) {
    part = std::nextafter(part, 2 * part);
  }
  (*config)["partial_rotary_factor"] = part;
}

// Older files of models with full rotary have their length under that key only.
void AddDecoderHeads(GgufMetadata& m, Json* config) {
  AddDecoder(m, config);
  if (!m.Has(kRotaryDimensions)) return;
  const int64_t turned = m.Size(kRotaryDimensions),
                head_dim = m.Size("attention.key_length", turned);
  (*config)["head_dim"] = head_dim;
  if (turned != head_dim) AddPartialRotary(turned, head_dim, config);
}

// For architectures whose rows llama.cpp's converter permutes as whole heads, and for Gemma 3,
// which configures it for some layers only.
void RefusePartialRotary(GgufMetadata& m, const Json& config) {
  if (!config.contains("partial_rotary_factor")) return;
  m.Fail(kRotaryDimensions, absl::StrCat(config["head_dim"].get<int64_t>(), ", as '",
                                         m.Key("attention.key_length"), "': whole heads turn"));
}

void AddQwen2(GgufMetadata& m, Json* config) { AddDecoderHeads(m, config); }

void AddQwen3(GgufMetadata& m, Json* config) {
  AddDecoderHeads(m, config);
  (*config)["attention_bias"] = HasTensor(m, "blk.0.attn_q.bias");
}

void AddLlama(GgufMetadata& m, Json* config) {
  AddQwen3(m, config);
  RefusePartialRotary(m, *config);
  (*config)["mlp_bias"] = HasTensor(m, "blk.0.ffn_gate.bias");
}

void AddMixtral(GgufMetadata& m, Json* config) {
  AddDecoderHeads(m, config);
  RefusePartialRotary(m, *config);
  const absl::StatusOr<GgufExperts> experts = ReadGgufExperts(m);
  if (!experts.ok()) return;
  if (!m.Flag("expert_weights_norm", true)) m.Fail("expert_weights_norm", "true");
  (*config)["num_local_experts"] = experts->count;
  (*config)["num_experts_per_tok"] = experts->used;
}

void AddQwen3Moe(GgufMetadata& m, Json* config) {
  AddQwen3(m, config);
  const absl::StatusOr<GgufExperts> experts = ReadGgufExperts(m);
  if (!experts.ok()) return;
  Json& c = *config;
  c["num_experts"] = experts->count;
  c["num_experts_per_tok"] = experts->used;
  // Files older than this field divide the dense size.
  c["moe_intermediate_size"] =
      m.Size("expert_feed_forward_length", m.Size("feed_forward_length") / experts->used);
  // True of all models of this architecture in llama.cpp; its converter writes no such field.
  c["norm_topk_prob"] = m.Flag("expert_weights_norm", true);
  c["decoder_sparse_step"] = 1;
  c["mlp_only_layers"] = Json::array();
}

// "layer_types": all layers have a sliding window except every `period`-th, unless the file says
// otherwise.
void AddLayerTypes(GgufMetadata& m, int64_t period, Json* config) {
  const char* kPattern = "attention.sliding_window_pattern";
  const int64_t layers = m.Size("block_count");
  if (layers > 4096) return m.Fail("block_count", "at most 4096");
  std::vector<double> pattern;
  const auto found = m.file().metadata().find(m.Key(kPattern));
  if (found != m.file().metadata().end() &&
      std::holds_alternative<GgufFile::Array>(found->second)) {
    absl::StatusOr<std::vector<double>> numbers = m.file().Numbers(m.Key(kPattern));
    if (!numbers.ok()) return m.Fail(numbers.status());
    pattern = *std::move(numbers);
    if (static_cast<int64_t>(pattern.size()) < layers) {
      return m.Fail(kPattern, absl::StrCat("one flag for each of the ", layers, " layers"));
    }
  } else {
    period = m.Size(kPattern, period);
  }
  Json types = Json::array();
  for (int64_t i = 0; i < layers; ++i) {
    const bool sliding =
        pattern.empty() ? (i + 1) % period != 0 : pattern[static_cast<size_t>(i)] != 0;
    types.push_back(sliding ? "sliding_attention" : "full_attention");
  }
  (*config)["layer_types"] = std::move(types);
}

void AddGemma(GgufMetadata& m, Json* config) {
  AddQwen3(m, config);
  (*config)["hidden_activation"] = "gelu_pytorch_tanh";
}

// The query scale is 1 / sqrt(head_dim), except in the 27B model, which is recognized by its depth:
// 1 / sqrt(hidden size / heads). No file says so (llama.cpp's gemma2.cpp and gemma3.cpp, after
// gemma_pytorch's config.py).
void AddQueryScale(GgufMetadata& m, int64_t layers_of_27b, Json* config) {
  Json& c = *config;
  const int64_t hidden = m.Size("embedding_length"), heads = m.Size("attention.head_count");
  c["query_pre_attn_scalar"] = m.Size("block_count") == layers_of_27b
                                   ? std::max<int64_t>(1, hidden / heads)
                                   : m.Size("attention.key_length");
}

void AddGemma2(GgufMetadata& m, Json* config) {
  AddGemma(m, config);
  AddQueryScale(m, 46, config);
  AddLayerTypes(m, 2, config);
  Json& c = *config;
  c["sliding_window"] = m.Size("attention.sliding_window", 4096);
  c["attn_logit_softcapping"] = m.Number("attn_logit_softcapping", 50);
  c["final_logit_softcapping"] = m.Number("final_logit_softcapping", 30);
}

void AddGemma3(GgufMetadata& m, Json* config) {
  AddGemma(m, config);
  RefusePartialRotary(m, *config);
  AddQueryScale(m, 62, config);
  AddLayerTypes(m, 6, config);
  Json& c = *config;
  c["sliding_window"] = Json();
  if (m.Has("attention.sliding_window")) {
    c["sliding_window"] = m.Size("attention.sliding_window");
  }
  c["rope_local_base_freq"] = m.Number("rope.freq_base_swa", 10000);
  if (m.Has("final_logit_softcapping")) {
    c["final_logit_softcapping"] = m.Number("final_logit_softcapping", 0);
  }
}

void AddPhi3(GgufMetadata& m, Json* config) {
  AddDecoder(m, config);
  Json& c = *config;
  const int64_t hidden = m.Size("embedding_length"), heads = m.Size("attention.head_count");
  const int64_t head_dim = m.Size("attention.key_length", std::max<int64_t>(1, hidden / heads));
  AddPartialRotary(m.Size(kRotaryDimensions, head_dim), head_dim, config);
  const int64_t window = m.Int("attention.sliding_window", 0, 0);
  c["sliding_window"] = window > 0 ? Json(window) : Json();
}

void AddGpt2(GgufMetadata& m, Json* config) {
  Json& c = *config;
  c["n_embd"] = m.Size("embedding_length");
  c["n_layer"] = m.Size("block_count");
  c["n_head"] = m.Size("attention.head_count");
  c["n_positions"] = m.Size("context_length");
  c["n_inner"] = m.Size("feed_forward_length");
  c["layer_norm_epsilon"] = m.Number("attention.layer_norm_epsilon", 1e-5);
}

void AddBigCode(GgufMetadata& m, Json* config) {
  AddGpt2(m, config);
  // llama.cpp supports only this layout of the architecture and writes 1 for every model.
  if (m.Size("attention.head_count_kv", 1) != 1) m.Fail("attention.head_count_kv", "1");
  (*config)["multi_query"] = true;
}

void AddFalcon(GgufMetadata& m, Json* config) {
  if (m.Text("tensor_data_layout", "jploski") != "jploski") {
    m.Fail("tensor_data_layout", "\"jploski\": all of q, all of k, all of v");
  }
  Json& c = *config;
  c["hidden_size"] = m.Size("embedding_length");
  c["ffn_hidden_size"] = m.Size("feed_forward_length");
  c["num_hidden_layers"] = m.Size("block_count");
  c["num_attention_heads"] = m.Size("attention.head_count");
  const int64_t kv_heads = m.Size("attention.head_count_kv", 1);
  const int64_t head_dim =
      m.Size("embedding_length") / std::max<int64_t>(1, m.Size("attention.head_count"));
  if (m.Has(kRotaryDimensions) && m.Size(kRotaryDimensions) != head_dim) {
    m.Fail(kRotaryDimensions, absl::StrCat(head_dim, ": whole heads turn"));
  }
  const bool two_norms = HasTensor(m, "blk.0.attn_norm_2.weight");
  c["num_kv_heads"] = kv_heads;
  c["new_decoder_architecture"] = two_norms || kv_heads > 1;
  c["num_ln_in_parallel_attn"] = two_norms ? 2 : 1;
  c["multi_query"] = true;
  c["parallel_attn"] = true;
  c["alibi"] = false;
  c["bias"] = HasTensor(m, "blk.0.attn_qkv.bias");
  c["layer_norm_epsilon"] = m.Number("attention.layer_norm_epsilon", 1e-5);
  c["max_position_embeddings"] = m.Size("context_length", 2048);
  c["rope_theta"] = m.Number("rope.freq_base", 10000);
  c["rope_scaling"] = RopeScaling(m);
}

void AddMpt(GgufMetadata& m, Json* config) {
  Json& c = *config;
  const int64_t hidden = m.Size("embedding_length"), ffn = m.Size("feed_forward_length");
  const int64_t heads = m.Size("attention.head_count");
  if (ffn % hidden != 0) m.Fail("feed_forward_length", "a multiple of embedding_length");
  if (m.Size("attention.head_count_kv", heads) != heads) {
    m.Fail("attention.head_count_kv", absl::StrCat(heads, ": heads are not grouped"));
  }
  c["d_model"] = hidden;
  c["expansion_ratio"] = ffn / hidden;
  c["n_layers"] = m.Size("block_count");
  c["n_heads"] = heads;
  c["max_seq_len"] = m.Size("context_length");
  c["layer_norm_epsilon"] = m.Number("attention.layer_norm_epsilon", 1e-5);
  Json& attention = c["attn_config"];
  const double bias = m.Number("attention.max_alibi_bias", 0),
               clip = m.Number("attention.clamp_kqv", 0);
  attention["alibi"] = bias > 0;
  if (bias > 0) attention["alibi_bias_max"] = bias;
  if (clip != 0) attention["clip_qkv"] = clip;
  attention["qk_ln"] = HasTensor(m, "blk.0.attn_q_norm.weight");
}

struct Family {
  const char* model_type;
  void (*add)(GgufMetadata&, Json*);
};
constexpr Family kFamilies[] = {
    {"llama", AddLlama},   {"mixtral", AddMixtral},     {"qwen2", AddQwen2},
    {"qwen3", AddQwen3},   {"qwen3_moe", AddQwen3Moe},  {"gemma", AddGemma},
    {"gemma2", AddGemma2}, {"gemma3_text", AddGemma3},  {"phi3", AddPhi3},
    {"gpt2", AddGpt2},     {"gpt_bigcode", AddBigCode}, {"falcon", AddFalcon},
    {"mpt", AddMpt}};

}  // namespace

absl::StatusOr<std::string> GgufConfig(FileSystem& files, const std::string& path) {
  absl::StatusOr<std::unique_ptr<GgufFile>> opened = GgufFile::Open(files, path);
  if (!opened.ok()) return opened.status();
  const GgufFile& file = **opened;
  GgufMetadata m(file);
  const absl::StatusOr<const GgufArchitecture*> architecture = FindGgufArchitecture(m);
  if (!architecture.ok()) return architecture.status();
  const auto table = file.tensors().find("token_embd.weight");
  if (table == file.tensors().end() || table->second.dims.size() != 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", path, "': there is no matrix 'token_embd.weight'"));
  }
  const std::string type = (*architecture)->model_type;
  Json config;
  config["architectures"] = {(*architecture)->hf};
  config["model_type"] = type;
  config["vocab_size"] = table->second.dims[0];
  config["tie_word_embeddings"] = file.tensors().count("output.weight") == 0;
  const auto family = std::find_if(std::begin(kFamilies), std::end(kFamilies),
                                   [&](const Family& f) { return type == f.model_type; });
  if (family == std::end(kFamilies)) {
    return absl::InternalError(absl::StrCat("no configuration is made for '", type, "'"));
  }
  family->add(m, &config);
  if (!m.status().ok()) return m.status();
  const absl::StatusOr<std::vector<int64_t>> ends = GgufEosIds(file);
  if (!ends.ok()) return ends.status();
  if (ends->size() == 1) config["eos_token_id"] = ends->front();
  if (ends->size() > 1) config["eos_token_id"] = *ends;
  return config.dump(2, ' ', true, Json::error_handler_t::replace);
}

}  // namespace espalier
