#include "serving/models/read_tokenizer_files.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "models/weights/additional_templates.h"
#include "models/weights/weight_files.h"

namespace espalier {
namespace {

constexpr int64_t kMaxConfigFileBytes = 1 << 20;
// The largest vocabularies take some tens of megabytes as JSON.
constexpr int64_t kMaxTokenizerFileBytes = int64_t{256} << 20;

}  // namespace

absl::StatusOr<TokenizerFiles> ReadTokenizerFiles(FileSystem& system, const std::string& folder) {
  const absl::StatusOr<std::vector<std::string>> names = system.List(folder);
  if (!names.ok()) return names.status();
  TokenizerFiles files;
  const std::tuple<const char*, std::string*, int64_t> kFiles[] = {
      {"tokenizer.json", &files.tokenizer_json, kMaxTokenizerFileBytes},
      {"tokenizer_config.json", &files.tokenizer_config_json, kMaxTokenizerFileBytes},
      {"special_tokens_map.json", &files.special_tokens_map_json, kMaxConfigFileBytes},
      {"generation_config.json", &files.generation_config_json, kMaxConfigFileBytes},
      {"chat_template.jinja", &files.chat_template_jinja, kMaxConfigFileBytes}};
  for (const auto& [name, text, max_bytes] : kFiles) {
    if (std::find(names->begin(), names->end(), name) == names->end()) continue;
    absl::StatusOr<std::string> read = ReadWholeFile(system, JoinPath(folder, name), max_bytes);
    if (!read.ok()) return read.status();
    *text = *std::move(read);
  }
  absl::StatusOr<std::map<std::string, std::string>> more =
      ReadAdditionalTemplates(system, folder, *names);
  if (!more.ok()) return more.status();
  files.additional_chat_templates = *std::move(more);
  if (!files.tokenizer_json.empty()) return files;
  absl::StatusOr<TokenizerTexts> texts = ReadModelTokenizer(system, folder);
  if (!texts.ok()) return texts.status();
  files.tokenizer_json = std::move(texts->tokenizer);
  if (files.tokenizer_config_json.empty()) files.tokenizer_config_json = std::move(texts->config);
  return files;
}

}  // namespace espalier
