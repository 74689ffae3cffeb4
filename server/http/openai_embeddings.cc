#include "server/http/openai_embeddings.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "server/http/json_reader.h"
#include "server/http/openai_sampling.h"
#include "server/http/text_or_tokens_reader.h"

namespace espalier::openai {
namespace {

using json = nlohmann::ordered_json;

std::string Base64(const v1::Embedding& embedding) {
  static_assert(std::endian::native == std::endian::little);
  std::string bytes(static_cast<size_t>(embedding.values_size()) * sizeof(float), '\0');
  std::memcpy(bytes.data(), embedding.values().data(), bytes.size());
  return absl::Base64Escape(bytes);
}

}  // namespace

std::optional<Error> ParseEmbeddings(const std::string& body, EmbeddingsRequest* request) {
  json parsed;
  if (auto error = JsonReader::ParseBody(body, &parsed)) return error;
  JsonReader reader(parsed);
  v1::EmbedRequest& embed = request->embed;
  reader.String("model", true, embed.mutable_model());
  ReadTextsOrTokens(reader, "input", kMaxEmbedInputs, [&] { return embed.add_inputs(); });
  std::string format = "float";
  reader.String("encoding_format", false, &format);
  request->base64 = format == "base64";
  if (!request->base64 && format != "float") {
    reader.Fail("encoding_format", "field 'encoding_format' must be float or base64");
  }
  int dimensions = 0;
  reader.Integer("dimensions", 1, 1 << 20, &dimensions);
  embed.set_dimensions(dimensions);
  bool add_special = true, normalize = true;
  reader.Bool("add_special_tokens", &add_special);
  reader.Bool("normalize", &normalize);
  embed.set_no_special_tokens(!add_special);
  embed.set_no_normalization(!normalize);
  int most = 0;
  ReadTruncation(reader, &most);
  embed.set_truncate(most == -1);
  embed.set_truncate_prompt_tokens(std::max(0, most));
  const SchedulingFields queueing = ReadSchedulingFields(reader);
  embed.set_priority(queueing.priority);
  embed.set_cache_salt(queueing.cache_salt);
  embed.set_timeout_seconds(queueing.timeout_seconds);
  ReadRequestId(reader, &request->id);
  reader.Ignore({"user"});
  reader.RefuseUnknown();
  return reader.error();
}

std::string EmbeddingsJson(const EmbeddingsRequest& request, const v1::EmbedReply& reply) {
  json data = json::array();
  for (const v1::Embedding& embedding : reply.embeddings()) {
    json entry = {{"object", "embedding"}, {"index", data.size()}};
    if (request.base64) {
      entry["embedding"] = Base64(embedding);
    } else {
      json& values = entry["embedding"] = json::array();
      for (const float value : embedding.values()) values.push_back(value);
    }
    data.push_back(std::move(entry));
  }
  const int tokens = reply.usage().prompt_tokens();
  json answer = {{"object", "list"},
                 {"data", std::move(data)},
                 {"model", request.embed.model()},
                 {"usage", {{"prompt_tokens", tokens}, {"total_tokens", tokens}}}};
  if (!request.id.empty()) answer["id"] = absl::StrCat("embd-", request.id);
  return Dump(answer);
}

}  // namespace espalier::openai
