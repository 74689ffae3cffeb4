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

// ggml's type numbers of the types that GgufBytes writes.
enum GgmlType : uint32_t {
  kGgmlF32 = 0,
  kGgmlF16 = 1,
  kGgmlQ4_0 = 2,
  kGgmlQ8_0 = 8,
  kGgmlBF16 = 30
};

// Encodes numbers in a type. REQUIRES: whole blocks.
std::string GgufBytes(uint32_t type, const std::vector<float>& values);
// Decodes such bytes; written for this test from the formats' definition.
std::vector<float> GgufMeaning(uint32_t type, const std::string& bytes, size_t count);

struct DrawnTensor {
  Dims dims;
  std::vector<float> values;
};
using DrawnTensors = std::map<std::string, DrawnTensor>;

// A case of families.json with the changes of gguf_cases.json, and its tensors.
FamilyCase FamilyOf(const nlohmann::json& gguf_case, const std::vector<FamilyCase>& families);
DrawnTensors DrawTensors(const FamilyCase& family);

struct GgufEntry {
  std::string name;
  Dims dims;
  uint32_t type = kGgmlF32;
  std::string bytes;
};

// Returns the tensors of the case's file: matrices in `type` if their rows are whole blocks, except
// for routers, which llama.cpp never quantizes.
std::vector<GgufEntry> GgufEntries(const nlohmann::json& gguf_case, const DrawnTensors& drawn,
                                   uint32_t type = kGgmlF32);

// Returns the family's tensors after a round trip through such a file's types.
DrawnTensors AsKept(const nlohmann::json& gguf_case, DrawnTensors drawn, uint32_t type);

// Returns a GGUF version 3 file. `metadata`: [type name, value] by key.
std::string GgufFileOf(const nlohmann::json& metadata, const std::vector<GgufEntry>& tensors);

}  // namespace espalier
