// config.json in and out. The only file here that sees nlohmann, whose exceptions end here.
#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "ops/models/llama.h"

namespace espalier {
namespace {

using Json = nlohmann::ordered_json;

absl::Status Bad(absl::string_view field, const Json& found, absl::string_view accepted) {
  std::string text = found.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return absl::InvalidArgumentError(absl::StrCat("config.json: field \"", std::string(field),
                                                 "\" is ", text, "; accepted: ", accepted));
}

absl::Status Unsupported(absl::string_view field, const Json& found, absl::string_view accepted) {
  return absl::UnimplementedError(Bad(field, found, accepted).message());
}

// Null and absent are the same in Hugging Face's files.
const Json* Find(const Json& object, const char* field) {
  auto it = object.find(field);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

// Reads typed fields; the first error sticks.
class Reader {
 public:
  explicit Reader(const Json& object) : object_(object) {}

  void Required(const char* field, int64_t* out) {
    if (Find(object_, field) == nullptr) {
      Fail(absl::InvalidArgumentError(
          absl::StrCat("config.json: field \"", field, "\" is missing")));
    }
    Optional(field, out);
  }

  void Optional(const char* field, int64_t* out) {
    const Json* value = Find(object_, field);
    if (value == nullptr) return;
    const bool overflows =
        value->is_number_unsigned() && value->get<uint64_t>() > (uint64_t{1} << 62);
    if (!value->is_number_integer() || overflows) return Fail(Bad(field, *value, "an integer"));
    *out = value->get<int64_t>();
  }

  void Optional(const char* field, double* out) {
    const Json* value = Find(object_, field);
    if (value == nullptr) return;
    if (!value->is_number()) return Fail(Bad(field, *value, "a number"));
    *out = value->get<double>();
  }

  void Optional(const char* field, bool* out) {
    const Json* value = Find(object_, field);
    if (value == nullptr) return;
    if (!value->is_boolean()) return Fail(Bad(field, *value, "true or false"));
    *out = value->get<bool>();
  }

  // Fields whose only supported setting is false.
  void MustBeFalse(const char* field) {
    const Json* value = Find(object_, field);
    if (value != nullptr && *value != false) Fail(Unsupported(field, *value, "false"));
  }

  void Fail(absl::Status status) {
    if (status_.ok()) status_ = std::move(status);
  }
  const absl::Status& status() const { return status_; }

 private:
  const Json& object_;
  absl::Status status_;
};

// Newer files nest {"rope_type", "rope_theta"} in "rope_parameters"; older ones have
// "rope_scaling".
void ReadRotary(const Json& object, Reader* reader, LlamaConfig* config) {
  reader->Optional("rope_theta", &config->rope_theta);
  for (const char* field : {"rope_scaling", "rope_parameters"}) {
    const Json* value = Find(object, field);
    if (value == nullptr) continue;
    if (!value->is_object()) {
      reader->Fail(Bad(field, *value, "null or an object"));
      continue;
    }
    const Json* type = Find(*value, "rope_type");
    if (type == nullptr) type = Find(*value, "type");
    if (type == nullptr || *type != "default") {
      reader->Fail(Unsupported(field, *value, "null, or rope_type \"default\""));
      continue;
    }
    Reader nested(*value);
    nested.Optional("rope_theta", &config->rope_theta);
    reader->Fail(nested.status());
  }
}

void ReadEos(const Json& object, Reader* reader, LlamaConfig* config) {
  const Json* value = Find(object, "eos_token_id");
  if (value == nullptr) return;
  const Json list = value->is_array() ? *value : Json::array({*value});
  for (const Json& id : list) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() > INT32_MAX) {
      return reader->Fail(Bad("eos_token_id", *value, "null, a token id or a list of them"));
    }
    config->eos.push_back(static_cast<int>(id.get<int64_t>()));
  }
}

absl::StatusOr<LlamaConfig> FromObject(const Json& object) {
  if (!object.is_object()) {
    return absl::InvalidArgumentError("config.json: the text is no JSON object");
  }
  Reader reader(object);
  LlamaConfig config;
  config.tokenizer.clear();
  const Json* type = Find(object, "model_type");
  if (type != nullptr && *type != "llama")
    reader.Fail(Unsupported("model_type", *type, "\"llama\""));
  reader.Required("vocab_size", &config.vocab_size);
  reader.Required("hidden_size", &config.hidden_size);
  reader.Required("intermediate_size", &config.intermediate_size);
  reader.Required("num_hidden_layers", &config.num_layers);
  reader.Required("num_attention_heads", &config.num_heads);
  config.num_kv_heads = config.num_heads;
  reader.Optional("num_key_value_heads", &config.num_kv_heads);
  if (config.num_heads > 0) config.head_dim = config.hidden_size / config.num_heads;
  if (Find(object, "head_dim") == nullptr && config.num_heads > 0 &&
      config.hidden_size % config.num_heads != 0) {
    reader.Fail(Bad("hidden_size", object["hidden_size"],
                    "a multiple of num_attention_heads, or a \"head_dim\" besides"));
  }
  reader.Optional("head_dim", &config.head_dim);
  config.rms_norm_eps = 1e-6;
  reader.Optional("rms_norm_eps", &config.rms_norm_eps);
  ReadRotary(object, &reader, &config);
  reader.Optional("max_position_embeddings", &config.max_position_embeddings);
  reader.Optional("tie_word_embeddings", &config.tie_word_embeddings);
  reader.MustBeFalse("attention_bias");
  reader.MustBeFalse("mlp_bias");
  if (const Json* act = Find(object, "hidden_act"); act != nullptr && *act != "silu") {
    reader.Fail(Unsupported("hidden_act", *act, "\"silu\""));
  }
  if (const Json* q = Find(object, "quantization_config"); q != nullptr) {
    reader.Fail(Unsupported("quantization_config", *q, "none: f32, bf16 or f16 weights"));
  }
  if (const Json* t = Find(object, "tokenizer"); t != nullptr) {
    if (*t == "bytes") {
      config.tokenizer = "bytes";
    } else {
      reader.Fail(Bad("tokenizer", *t, "\"bytes\", or leave the field out"));
    }
  }
  ReadEos(object, &reader, &config);
  if (!reader.status().ok()) return reader.status();
  if (absl::Status s = Validate(config); !s.ok()) return s;
  return config;
}

}  // namespace

std::string ToConfigJson(const LlamaConfig& c) {
  Json json;
  json["architectures"] = {"LlamaForCausalLM"};
  json["model_type"] = "llama";
  json["vocab_size"] = c.vocab_size;
  json["hidden_size"] = c.hidden_size;
  json["intermediate_size"] = c.intermediate_size;
  json["num_hidden_layers"] = c.num_layers;
  json["num_attention_heads"] = c.num_heads;
  json["num_key_value_heads"] = c.num_kv_heads;
  json["head_dim"] = c.head_dim;
  json["hidden_act"] = "silu";
  json["rms_norm_eps"] = c.rms_norm_eps;
  json["rope_theta"] = c.rope_theta;
  json["rope_scaling"] = nullptr;
  json["attention_bias"] = false;
  json["mlp_bias"] = false;
  json["max_position_embeddings"] = c.max_position_embeddings;
  json["tie_word_embeddings"] = c.tie_word_embeddings;
  // Null, not absent: Hugging Face would otherwise take its own defaults, which are tokens of ours.
  json["bos_token_id"] = nullptr;
  json["pad_token_id"] = nullptr;
  if (c.eos.empty()) {
    json["eos_token_id"] = nullptr;
  } else if (c.eos.size() == 1) {
    json["eos_token_id"] = c.eos[0];
  } else {
    json["eos_token_id"] = c.eos;
  }
  json["torch_dtype"] = "float32";
  if (!c.tokenizer.empty()) json["tokenizer"] = c.tokenizer;
  return json.dump(2);
}

absl::StatusOr<LlamaConfig> LlamaConfigFromJson(absl::string_view text) {
  if (text.size() > (size_t{1} << 20)) {
    return absl::InvalidArgumentError(
        "config.json: more than 1 MiB; accepted: a model's configuration");
  }
  // The parser keeps its own stack, so deep nesting is harmless here; but destroying a deep value
  // recurses.
  int depth = 0;
  auto shallow = [&depth](int at, Json::parse_event_t, Json&) {
    depth = std::max(depth, at);
    return at < 64;
  };
  try {
    Json json = Json::parse(text.data(), text.data() + text.size(), shallow);
    if (depth >= 64) return absl::InvalidArgumentError("config.json: nested deeper than 64 levels");
    return FromObject(json);
  } catch (const nlohmann::json::exception& e) {
    return absl::InvalidArgumentError(absl::StrCat("config.json: ", e.what()));
  }
}

}  // namespace espalier
