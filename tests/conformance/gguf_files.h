// Writes GGUF files of the models in gguf_cases.json (made by make_gguf_cases.py).
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ops/tensor/shape.h"
#include "tests/conformance/family_model.h"

namespace espalier {

// ggml's numbers of the types that GgufBytes writes.
enum GgmlType : uint32_t {
  kGgmlF32 = 0,
  kGgmlF16 = 1,
  kGgmlQ4_0 = 2,
  kGgmlQ8_0 = 8,
  kGgmlBF16 = 30
};

// Numbers as their type holds them. REQUIRES: whole blocks.
std::string GgufBytes(uint32_t type, const std::vector<float>& values);
// What such bytes mean; written for this test, from the formats' definition.
std::vector<float> GgufMeaning(uint32_t type, const std::string& bytes, size_t count);

struct DrawnTensor {
  Dims dims;
  std::vector<float> values;
};
using DrawnTensors = std::map<std::string, DrawnTensor>;

// The family's case as gguf_cases.json changes it, and its tensors.
FamilyCase FamilyOf(const nlohmann::json& gguf_case, const std::vector<FamilyCase>& families);
DrawnTensors DrawTensors(const FamilyCase& family);

struct GgufEntry {
  std::string name;
  Dims dims;
  uint32_t type = kGgmlF32;
  std::string bytes;
};

// The tensors of the case's file: matrices in `type` if their rows are whole blocks, but for
// routers, which llama.cpp never quantises.
std::vector<GgufEntry> GgufEntries(const nlohmann::json& gguf_case, const DrawnTensors& drawn,
                                   uint32_t type = kGgmlF32);

// The family's tensors with the numbers that such a file keeps of them.
DrawnTensors AsKept(const nlohmann::json& gguf_case, DrawnTensors drawn, uint32_t type);

// A file of version 3. `metadata`: [type's name, value] by key.
std::string GgufFileOf(const nlohmann::json& metadata, const std::vector<GgufEntry>& tensors);

}  // namespace espalier
