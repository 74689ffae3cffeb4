// Writes the models of families.json as folders on disk, and makes batches for their runners.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <vector>

#include "base/file_system.h"
#include "serving/runner/model_runner.h"

namespace espalier {

// Prints a test parameter as its name.
struct FamilyCase {
  nlohmann::json data;
  const nlohmann::json& operator[](const char* key) const { return data.at(key); }
  std::string name() const { return data.at("name").get<std::string>(); }
};
void PrintTo(const FamilyCase& c, std::ostream* out);

// Reads the list of cases in a file.
std::vector<FamilyCase> ReadFamilyCases(const std::string& path);

// A case's attention heads, read from its config.json.
struct FamilyHeads {
  int queries = 0;
  int keys = 0;  // K/V heads

  // Returns whether the heads can be partitioned over this many devices; fewer K/V heads are
  // replicated.
  bool Divide(int parts) const {
    return queries % parts == 0 && (keys % parts == 0 || parts % keys == 0);
  }
};
FamilyHeads HeadsOf(const FamilyCase& c);

// Decodes base64 of little-endian f32.
std::vector<float> DecodeFloats(const std::string& base64);

// Returns a tensor's elements, as make_family_golden.py defines them.
std::vector<float> DrawValues(const std::string& name, int64_t count, double mean, double scale);

// Returns a safetensors file of {name: [shape, mean, scale]}. Elements are those that
// make_family_golden.py defines for `prefix` + name.
absl::Status WriteDrawnTensors(FileSystem& files, const std::string& path,
                               const nlohmann::json& tensors, const std::string& prefix = "");

// Writes config.json and model.safetensors of a case.
absl::Status WriteFamilyFolder(FileSystem& files, const std::string& folder, const FamilyCase& c);

// Batches over sequences with kSequenceSlots slots each, in scattered order.
constexpr int kSequenceSlots = 96;
int32_t SlotOf(int position, int sequence = 0);

// Adds a row with logits. `ancestors` as in RunnerBatch.
void AddRow(RunnerBatch* batch, int32_t token, int position, int32_t slot, int sequence, int prefix,
            const std::vector<int32_t>& ancestors = {});
// Adds the batch's next sequence, in the slots of `place`, and its rows [begin, end).
void AddSequence(RunnerBatch* batch, const std::vector<int32_t>& tokens, int begin, int end,
                 int place = 0);

}  // namespace espalier
