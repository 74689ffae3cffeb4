// The architectures of GGUF files that are read: which of Hugging Face's models each one is, what
// its tensors are called there, and what llama.cpp's converter did to them.
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
  // Rows of q and k, by head: the two that a rotary embedding turns together are neighbours, not
  // half a head apart.
  kPermutedQuery,
  kPermutedKey,
  // Rows of Falcon's fused q, k and v: all of q, all of k, all of v, not group by group.
  kFalconFusedQkv,
  kPlusOne,     // Gemma's norms: Hugging Face keeps their weights minus 1
  kTransposed,  // matrices of GPT-2, which Hugging Face keeps as [in, out]
};

// What comes before ".weight" and ".bias".
struct GgufName {
  const char* gguf;
  const char* hf;
  GgufWeightTransform change = GgufWeightTransform::kNone;
};

// Of a layer's mixture, after the layer's own prefix.
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

// The architecture of a file. Unimplemented, by name, for others, and for mixtures of experts where
// the architecture is not read as one; InvalidArgument for metadata that cannot be.
absl::StatusOr<const GgufArchitecture*> FindGgufArchitecture(GgufMetadata& metadata);

// Numbers of layers and experts. InvalidArgument, by key, for more used than there are, or for more
// of them than any model has; Unimplemented for switches that change the mathematics.
absl::StatusOr<GgufExperts> ReadGgufExperts(GgufMetadata& metadata);

struct GgufHfName {
  std::string name;
  GgufWeightTransform change = GgufWeightTransform::kNone;
};
// A name that no table has stays: whoever wants no such tensor says so.
GgufHfName HfNameOf(const GgufArchitecture& architecture, const std::string& name);

// Factors that divide the frequencies of rotary embeddings. They are part of the configuration.
inline constexpr char kGgufRopeFactors[] = "rope_freqs.weight";
inline constexpr char kGgufShortFactors[] = "rope_factors_short.weight";
inline constexpr char kGgufLongFactors[] = "rope_factors_long.weight";

}  // namespace espalier
