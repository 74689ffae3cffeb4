#include "server/http/gateway/rerank_route.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/http/answer_embedding.h"
#include "server/http/json_reader.h"
#include "server/http/openai_sampling.h"
#include "server/http/send_error.h"
#include "server/inference/requests/embedding.h"

namespace espalier {
namespace {

using json = nlohmann::ordered_json;
using openai::JsonReader;

constexpr size_t kMaxDocuments = kMaxEmbedInputs - 1;

void ReadDocuments(JsonReader& reader, std::vector<std::string>* documents) {
  const json* given = reader.Find("documents");
  if (given == nullptr || !given->is_array() || given->empty() || given->size() > kMaxDocuments) {
    reader.Fail("documents", absl::StrCat("field 'documents' must be a list of 1 to ",
                                          kMaxDocuments, " documents"));
    return;
  }
  for (size_t i = 0; i < given->size(); ++i) {
    const json& document = (*given)[i];
    const json text = document.is_object() ? document.value("text", json()) : document;
    if (!text.is_string() || (document.is_object() && document.size() > 1)) {
      reader.Fail("documents", absl::StrCat("documents[", i,
                                            "] must be a string or an object with a 'text' alone"));
      return;
    }
    documents->push_back(text.get<std::string>());
  }
}

double Similarity(const v1::Embedding& a, const v1::Embedding& b) {
  return std::inner_product(a.values().begin(), a.values().end(), b.values().begin(), 0.0);
}

}  // namespace

std::optional<openai::Error> ParseRerank(const std::string& body, RerankRequest* request) {
  json parsed;
  if (auto error = JsonReader::ParseBody(body, &parsed)) return error;
  JsonReader reader(parsed);
  v1::EmbedRequest& embed = request->embed;
  reader.String("model", true, embed.mutable_model());
  reader.String("query", true, embed.add_inputs()->mutable_text());
  ReadDocuments(reader, &request->documents);
  for (const std::string& text : request->documents) embed.add_inputs()->set_text(text);
  reader.Integer("top_n", 0, 1 << 30, &request->most);  // vLLM's 0 means all
  reader.Bool("return_documents", &request->return_documents);
  int most = 0;
  openai::ReadTruncation(reader, &most);
  embed.set_truncate(most == -1);
  embed.set_truncate_prompt_tokens(std::max(0, most));
  const openai::SchedulingFields queueing = openai::ReadSchedulingFields(reader);
  embed.set_priority(queueing.priority);
  embed.set_cache_salt(queueing.cache_salt);
  embed.set_timeout_seconds(queueing.timeout_seconds);
  reader.Ignore({"user"});
  reader.RefuseUnknown();
  return reader.error();
}

std::string RerankJson(const RerankRequest& request, const std::string& id,
                       const v1::EmbedReply& reply) {
  std::vector<std::pair<double, size_t>> scores;
  for (int i = 1; i < reply.embeddings_size(); ++i) {
    scores.emplace_back(Similarity(reply.embeddings(0), reply.embeddings(i)), scores.size());
  }
  std::stable_sort(scores.begin(), scores.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  if (request.most > 0 && scores.size() > static_cast<size_t>(request.most)) {
    scores.resize(static_cast<size_t>(request.most));
  }
  json results = json::array();
  for (const auto& [score, index] : scores) {
    json result = {{"index", index}};
    if (request.return_documents) result["document"] = {{"text", request.documents[index]}};
    result["relevance_score"] = score;
    results.push_back(std::move(result));
  }
  const int tokens = reply.usage().prompt_tokens();
  return openai::Dump({{"id", absl::StrCat("rerank-", id)},
                       {"object", "list"},
                       {"model", request.embed.model()},
                       {"usage", {{"prompt_tokens", tokens}, {"total_tokens", tokens}}},
                       {"results", std::move(results)}});
}

void Rerank(const HttpRequest& http, const RouteContext& context,
            std::shared_ptr<HttpResponder> responder) {
  const auto request = std::make_shared<RerankRequest>();
  if (const auto error = ParseRerank(http.body, request.get())) {
    return SendError(*responder, *error);
  }
  v1::EmbedRequest& embed = request->embed;
  absl::StatusOr<ModelServer::Target> target =
      context.models->Resolve(embed.model(), context.caller);
  if (!target.ok()) return SendError(*responder, target.status());
  if (const absl::Status& similar = target->model->engine->similarity(); !similar.ok()) {
    return SendError(
        *responder, absl::FailedPreconditionError(absl::StrCat(
                        "model '", embed.model(), "' cannot rank documents: ", similar.message())));
  }
  AnswerEmbedding(embed, *std::move(target), context, std::move(responder),
                  [request, id = context.id](const v1::EmbedReply& all) {
                    return RerankJson(*request, id, all);
                  });
}

}  // namespace espalier
