// Supported architectures of GGUF files: the Hugging Face model of each, the tensors' names in
// both, and the transformations of llama.cpp's converter.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "models/weights/gguf_metadata.h"

namespace espalier {

// How the file's tensor differs from Hugging Face's.
enum class GgufWeightTransform {
  kNone,
  // Rows of q and k within a head: the two elements of a rotary pair are adjacent instead of half a
  // head apart.
  kPermutedQuery,
  kPermutedKey,
  // Rows of Falcon's fused qkv: all q, all k, all v, instead of interleaved by group.
  kFalconFusedQkv,
  kPlusOne,     // Gemma's norms: Hugging Face stores weight - 1
  kTransposed,  // GPT-2: Hugging Face stores [in, out] (Conv1D)
};

// Names without ".weight" and ".bias".
struct GgufName {
  const char* gguf;
  const char* hf;
  GgufWeightTransform change = GgufWeightTransform::kNone;
};

// Hugging Face names of a layer's mixture of experts, after the layer's prefix.
struct GgufExpertNames {
  const char* router = nullptr;   // "mlp.gate"
  const char* experts = nullptr;  // "mlp.experts"
  const char* gate = nullptr;     // "gate_proj"
  const char* up = nullptr;
  const char* down = nullptr;
};

struct GgufArchitecture {
  const char* name;        // general.architecture
  const char* hf;          // "architectures"
  const char* model_type;  // "model_type"
  const char* layers;      // "model.layers.": before a layer's number
  std::span<const GgufName> names;
  std::span<const GgufName> layer_names;  // after "blk.N."
  GgufExpertNames experts;                // empty: it has no mixture
  const char* tensor = nullptr;           // only if the file has this one

  bool has_experts() const { return experts.router != nullptr; }
};

struct GgufExperts {
  int64_t layers = 0, count = 0, used = 0;
};

// Returns the architecture of a file. Returns Unimplemented, by name, for others, and for mixtures
// of experts of an architecture without them here; InvalidArgument for invalid metadata.
absl::StatusOr<const GgufArchitecture*> FindGgufArchitecture(GgufMetadata& metadata);

// Returns the numbers of layers and experts. Returns InvalidArgument, by key, if more are used than
// exist or the numbers are implausible; Unimplemented for switches that change the computation.
absl::StatusOr<GgufExperts> ReadGgufExperts(GgufMetadata& metadata);

struct GgufHfName {
  std::string name;
  GgufWeightTransform change = GgufWeightTransform::kNone;
};
// Unknown names are returned unchanged; the consumer rejects unexpected tensors.
GgufHfName HfNameOf(const GgufArchitecture& architecture, const std::string& name);

// Tensors of RoPE frequency factors, which belong to the configuration.
inline constexpr char kGgufRopeFactors[] = "rope_freqs.weight";
inline constexpr char kGgufShortFactors[] = "rope_factors_short.weight";
inline constexpr char kGgufLongFactors[] = "rope_factors_long.weight";

}  // namespace espalier
