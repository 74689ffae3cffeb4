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

// A test's parameter prints as its name alone.
struct FamilyCase {
  nlohmann::json data;
  const nlohmann::json& operator[](const char* key) const { return data.at(key); }
  std::string name() const { return data.at("name").get<std::string>(); }
};
void PrintTo(const FamilyCase& c, std::ostream* out);

// The list in such a file.
std::vector<FamilyCase> ReadFamilyCases(const std::string& path);

// A case's attention heads, as its config.json says in its family's words.
struct FamilyHeads {
  int queries = 0;
  int keys = 0;  // and values

  // Whether they can be shared out to so many devices, each key on several of them if there are
  // fewer.
  bool Divide(int parts) const {
    return queries % parts == 0 && (keys % parts == 0 || parts % keys == 0);
  }
};
FamilyHeads HeadsOf(const FamilyCase& c);

// Numbers of little-endian f32 in base64.
std::vector<float> DecodeFloats(const std::string& base64);

// A tensor's elements, drawn as make_family_golden.py says.
std::vector<float> DrawValues(const std::string& name, int64_t count, double mean, double scale);

// A safetensors file of {name: [shape, mean, scale]}, drawn as make_family_golden.py says, of the
// name with `prefix` before it.
absl::Status WriteDrawnTensors(FileSystem& files, const std::string& path,
                               const nlohmann::json& tensors, const std::string& prefix = "");

// config.json and model.safetensors of a case.
absl::Status WriteFamilyFolder(FileSystem& files, const std::string& folder, const FamilyCase& c);

// Batches over sequences of which each has kSequenceSlots slots, none near its place.
constexpr int kSequenceSlots = 96;
int32_t SlotOf(int position, int sequence = 0);

// Adds a row, whose logits are wanted. `ancestors` as in RunnerBatch.
void AddRow(RunnerBatch* batch, int32_t token, int position, int32_t slot, int sequence, int prefix,
            const std::vector<int32_t>& ancestors = {});
// Adds rows [begin, end) of a sequence, and the sequence, which is the batch's next one and lies in
// slots of `place`.
void AddSequence(RunnerBatch* batch, const std::vector<int32_t>& tokens, int begin, int end,
                 int place = 0);

}  // namespace espalier
