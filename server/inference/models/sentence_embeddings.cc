#include "server/inference/models/sentence_embeddings.h"

#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/json/bounded_json.h"

namespace espalier {
namespace {

using json = nlohmann::json;

constexpr char kLastToken[] = "pooling_mode_lasttoken";

}  // namespace

absl::Status CheckSentenceEmbeddings(const SentenceTransformersFiles& files) {
  if (files.modules_json.empty()) {
    return absl::FailedPreconditionError(
        "it was not trained to compare texts (its folder has no modules.json of "
        "sentence-transformers), so that scores would mean nothing; serve an embedding model that "
        "pools the last token");
  }
  const absl::StatusOr<json> modules = ParseBoundedJson<json>(files.modules_json);
  if (!modules.ok() || !modules->is_array()) {
    return absl::FailedPreconditionError("its modules.json is not a list of modules");
  }
  for (const json& module : *modules) {
    const json type = module.is_object() ? module.value("type", json()) : json();
    const std::string name = type.is_string() ? type.get<std::string>() : "";
    if (absl::EndsWith(name, ".Transformer") || absl::EndsWith(name, ".Pooling") ||
        absl::EndsWith(name, ".Normalize")) {
      continue;
    }
    return absl::FailedPreconditionError(absl::StrCat("its modules.json has a module of type '",
                                                      name.substr(0, 100),
                                                      "', which is not computed here"));
  }
  const absl::StatusOr<json> pooling = ParseBoundedJson<json>(files.pooling_config_json);
  if (!pooling.ok() || !pooling->is_object() || pooling->value(kLastToken, json()) != true) {
    return absl::FailedPreconditionError(
        absl::StrCat("embeddings are those of the last token here, and its 1_Pooling/config.json "
                     "does not set ",
                     kLastToken));
  }
  return absl::OkStatus();
}

}  // namespace espalier
