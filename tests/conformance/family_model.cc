#include "tests/conformance/family_model.h"

#include <cstring>
#include <fstream>
#include <utility>

#include "absl/strings/escaping.h"
#include "ops/tensor/shape.h"
#include "storage/safetensors.h"

namespace espalier {

using nlohmann::json;

std::vector<float> DrawValues(const std::string& name, int64_t count, double mean, double scale) {
  uint64_t state = 0xcbf29ce484222325u;
  for (unsigned char byte : name) state = (state ^ byte) * 0x100000001b3u;
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) {
    state += 0x9e3779b97f4a7c15u;
    uint64_t z = state;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    const double uniform = static_cast<double>(z >> 40) / (1 << 23) - 1;
    value = static_cast<float>(mean + scale * uniform);
  }
  return values;
}

void PrintTo(const FamilyCase& c, std::ostream* out) { *out << c.name(); }

std::vector<FamilyCase> ReadFamilyCases(const std::string& path) {
  std::ifstream file(path);
  std::vector<FamilyCase> cases;
  for (json& data : json::parse(file)) cases.push_back({std::move(data)});
  return cases;
}

FamilyHeads HeadsOf(const FamilyCase& c) {
  const json& config = c["config"];
  FamilyHeads heads;
  for (const char* field : {"num_attention_heads", "n_head", "n_heads"}) {
    if (config.contains(field)) heads.queries = config[field].get<int>();
  }
  heads.keys = heads.queries;
  const std::string type = config.at("model_type").get<std::string>();
  const bool grouped = config.value("new_decoder_architecture", false);
  if (type == "falcon" || type == "gpt_bigcode") {
    if (grouped) {
      heads.keys = config.at("num_kv_heads").get<int>();
    } else if (config.at("multi_query").get<bool>()) {
      heads.keys = 1;
    }
  } else if (config.contains("num_key_value_heads")) {
    heads.keys = config["num_key_value_heads"].get<int>();
  }
  return heads;
}

std::vector<float> DecodeFloats(const std::string& base64) {
  std::string bytes;
  if (!absl::Base64Unescape(base64, &bytes)) return {};
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
  return values;
}

absl::Status WriteDrawnTensors(FileSystem& files, const std::string& path, const json& tensors,
                               const std::string& prefix) {
  std::vector<SafetensorsWriter::Tensor> written;
  for (const auto& [name, spec] : tensors.items()) {
    written.push_back({name, {DType::kF32, spec[0].get<Dims>()}});
  }
  SafetensorsWriter writer(files, path);
  absl::Status status = writer.Begin(written, {});
  for (const SafetensorsWriter::Tensor& tensor : written) {
    if (!status.ok()) return status;
    const json& spec = tensors[tensor.name];
    const std::vector<float> values = DrawValues(prefix + tensor.name, tensor.type.num_elements(),
                                                 spec[1].get<double>(), spec[2].get<double>());
    status = writer.Append(values.data(), tensor.type.bytes());
  }
  if (!status.ok()) return status;
  return writer.Finish().status();
}

absl::Status WriteFamilyFolder(FileSystem& files, const std::string& folder, const FamilyCase& c) {
  absl::Status status = files.CreateDirectories(folder);
  if (status.ok()) {
    status = WriteFileAtomically(files, JoinPath(folder, "config.json"), c["config"].dump());
  }
  if (!status.ok()) return status;
  return WriteDrawnTensors(files, JoinPath(folder, "model.safetensors"), c["tensors"]);
}

int32_t SlotOf(int position, int sequence) {
  return sequence * kSequenceSlots + (position * 37 + 11) % kSequenceSlots;
}

void AddRow(RunnerBatch* batch, int32_t token, int position, int32_t slot, int sequence, int prefix,
            const std::vector<int32_t>& ancestors) {
  if (batch->ancestor_start.empty()) batch->ancestor_start = {0};
  batch->logit_rows.push_back(batch->rows());
  batch->tokens.push_back(token);
  batch->positions.push_back(position);
  batch->slots.push_back(slot);
  batch->row_sequence.push_back(sequence);
  batch->row_prefix.push_back(prefix);
  batch->ancestor_slots.insert(batch->ancestor_slots.end(), ancestors.begin(), ancestors.end());
  batch->ancestor_start.push_back(static_cast<int32_t>(batch->ancestor_slots.size()));
}

void AddSequence(RunnerBatch* batch, const std::vector<int32_t>& tokens, int begin, int end,
                 int place) {
  if (batch->sequence_start.empty()) batch->sequence_start = {0};
  const int sequence = static_cast<int>(batch->sequence_start.size()) - 1;
  for (int i = begin; i < end; ++i) {
    AddRow(batch, tokens[static_cast<size_t>(i)], i, SlotOf(i, place), sequence, i + 1);
  }
  for (int i = 0; i < end; ++i) batch->sequence_slots.push_back(SlotOf(i, place));
  batch->sequence_start.push_back(static_cast<int32_t>(batch->sequence_slots.size()));
}

}  // namespace espalier
