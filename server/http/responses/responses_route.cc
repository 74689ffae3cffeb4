#include "server/http/responses/responses_route.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/random_id.h"
#include "server/http/json_reader.h"
#include "server/http/response_producer.h"
#include "server/http/responses/responses_formatter.h"
#include "server/http/responses/responses_request.h"
#include "server/http/responses/truncate_conversation.h"
#include "server/http/send_error.h"
#include "server/inference/requests/generation.h"

namespace espalier {
namespace {

using json = nlohmann::ordered_json;
using Responder = std::shared_ptr<HttpResponder>;

constexpr char kJson[] = "application/json";

size_t CountValues(const json& value) {
  size_t count = 1;
  if (value.is_structured()) {
    for (const json& inner : value) count += CountValues(inner);
  }
  return count;
}

openai::Error ResponseNotFound(const std::string& id) {
  return {
      .http_status = 404,
      .message = absl::StrCat("there is no response '", id.substr(0, 100),
                              "': it was not stored, was deleted, is another owner's, or has made "
                              "room for newer ones (espalierd --response-store-bytes)"),
      .code = "response_not_found"};
}

// Error for a stored response whose conversation was dropped.
openai::Error ConversationDropped(const StoredResponse& response) {
  return {.http_status = 404,
          .message = response.object["error"]["message"].get<std::string>() +
                     ": its conversation was not kept",
          .code = "response_not_found"};
}

// A request with its references and all earlier turns resolved from the store.
struct PreparedRequest {
  openai::ResponsesRequest request;
  std::shared_ptr<LoadedModel> model;
};

std::optional<openai::Error> Read(const HttpRequest& http, const ResponsesContext& context,
                                  openai::ItemIds* ids, PreparedRequest* prepared) {
  openai::ResponsesRequest& request = prepared->request;
  if (auto error = openai::ParseResponses(http.body, ids, &request)) return error;
  absl::StatusOr<std::shared_ptr<LoadedModel>> model = ModelOf(context.generate, &request.generate);
  if (!model.ok()) return openai::FromStatus(model.status());
  prepared->model = *std::move(model);
  const Caller& caller = context.generate.caller;
  json before = json::array();
  if (!request.previous.empty()) {
    const ResponseStore::Found found = context.store->Find(request.previous, caller);
    if (found.ended == nullptr || found.ended->conversation_dropped) {
      openai::Error error = found.ended == nullptr ? ResponseNotFound(request.previous)
                                                   : ConversationDropped(*found.ended);
      if (found.running != nullptr) error.message = "the response to go on from has not ended";
      error.http_status = found.running != nullptr ? 409 : 404;
      error.param = "previous_response_id";
      error.code = "previous_response_not_found";
      return error;
    }
    before = found.ended->input;
    const json& output = found.ended->object["output"];
    before.insert(before.end(), output.begin(), output.end());
  }
  if (auto error = openai::ResolveReferences(
          [&](const std::string& id) { return context.store->Item(id, caller); }, &request.items)) {
    return error;
  }
  openai::MakeIdsUnique(before, ids, &request.items);
  if (auto error = openai::FillChat(before, &request)) return error;
  if (request.truncate) {
    const absl::Status fitted = TruncateConversation(*prepared->model, &request.generate);
    if (!fitted.ok()) return openai::FromStatus(fitted);
  }
  return std::nullopt;
}

// Records the sampling parameters that apply, for the response to repeat.
void EchoSampling(const v1::SamplingOptions& defaults, openai::ResponsesRequest* request) {
  const v1::SamplingOptions* sampling = &request->generate.sampling();
  request->echo["temperature"] =
      sampling->has_temperature() ? sampling->temperature() : defaults.temperature();
  const double top_p = sampling->has_top_p()  ? sampling->top_p()
                       : defaults.has_top_p() ? defaults.top_p()
                                              : 1;
  request->echo["top_p"] = top_p > 0 ? top_p : 1;
}

using Query = std::map<std::string, std::string>;

// No percent-decoding: no supported value needs it.
std::optional<openai::Error> ReadQuery(const HttpRequest& http,
                                       std::initializer_list<const char*> known, Query* query) {
  for (const auto& part : absl::StrSplit(http.query, '&', absl::SkipEmpty())) {
    const std::pair<std::string, std::string> field = absl::StrSplit(part, absl::MaxSplits('=', 1));
    // Lists of extra fields; all of them are always included.
    if (field.first == "include" || field.first == "include[]" || field.first == "include%5B%5D") {
      continue;
    }
    if (std::find(known.begin(), known.end(), field.first) == known.end()) {
      return openai::Error{
          .message = absl::StrCat("parameter '", field.first.substr(0, 100), "' is not known here",
                                  openai::DidYouMean(field.first, {known.begin(), known.end()})),
          .param = field.first.substr(0, 100)};
    }
    (*query)[field.first] = field.second;
  }
  return std::nullopt;
}

}  // namespace

void CreateResponse(const HttpRequest& http, const ResponsesContext& context, Responder responder) {
  const absl::StatusOr<std::string> base = RandomId();
  if (!base.ok()) {
    SendError(*responder, base.status());
    return;
  }
  openai::ItemIds ids(*base);
  PreparedRequest prepared;
  if (const auto error = Read(http, context, &ids, &prepared)) {
    SendError(*responder, *error);
    return;
  }
  openai::ResponsesRequest& request = prepared.request;
  if (!context.store->keeps() && (request.store.value_or(false) || request.background)) {
    SendError(*responder, openai::Error{.message = "this server stores no responses "
                                                   "(--response-store-bytes=0)",
                                        .param = request.background ? "background" : "store"});
    return;
  }
  const bool store = context.store->keeps() && request.store.value_or(true);
  SetDefaultTemperature(*prepared.model, &request.generate);
  responder = WithSchemaWarnings(std::move(responder), request.generate);
  EchoSampling(prepared.model->description.sampling_defaults(), &request);
  request.echo["store"] = store;
  const std::string id = "resp_" + *base;
  openai::ResponseHead head{.id = id,
                            .model = request.generate.model(),
                            .created_unix_seconds = context.generate.clock->NowUnixMillis() / 1000,
                            .echo = std::move(request.echo),
                            .with_logprobs = request.generate.has_logprobs(),
                            .include_reasoning = request.include_reasoning};
  const Caller& caller = context.generate.caller;
  ResponseProducerOptions options;
  options.formatter =
      std::make_unique<openai::ResponsesFormatter>(std::move(head), ids, request.stream);
  options.background = request.background;
  options.clock = context.generate.clock;
  options.serialization_thread = context.generate.serialization_thread;
  options.envelope_bytes = request.echo_bytes;
  if (store) {
    options.stored_values = CountValues(request.items);
    options.ended = [store = context.store, id, owner = caller.owner,
                     background = request.background, items = std::move(request.items)](
                        json object, std::vector<std::string> events) {
      StoredResponse ended{owner, std::move(object), items, std::move(events)};
      if (background) {
        store->End(id, std::move(ended));
      } else {
        store->Put(id, std::move(ended));
      }
    };
  }
  const auto producer =
      std::make_shared<ResponseProducer>(std::move(options), std::move(responder));
  if (request.background) context.store->Start(id, caller.owner, producer);
  absl::StatusOr<std::shared_ptr<Generation>> generation =
      StartGeneration(request.generate, prepared.model, context.generate.models,
                      context.generate.metrics, producer->Listener());
  if (!generation.ok() && request.background) context.store->Erase(id, caller);
  producer->Accept(std::move(generation));
}

void CountResponseInputTokens(const HttpRequest& http, const ResponsesContext& context,
                              Responder responder) {
  openai::ItemIds ids("");
  PreparedRequest prepared;
  if (const auto error = Read(http, context, &ids, &prepared)) {
    SendError(*responder, *error);
    return;
  }
  absl::StatusOr<Prompt> prompt = PromptOf(prepared.request.generate, *prepared.model);
  if (!prompt.ok()) {
    SendError(*responder, prompt.status());
    return;
  }
  responder->Send(
      200, kJson,
      openai::Dump({{"object", "response.input_tokens"}, {"input_tokens", prompt->tokens.size()}}));
}

void GetResponse(const HttpRequest& http, const std::string& id, const ResponsesContext& context,
                 Responder responder) {
  Query query;
  if (const auto error =
          ReadQuery(http, {"stream", "starting_after", "include_obfuscation"}, &query)) {
    SendError(*responder, *error);
    return;
  }
  int64_t after = -1;
  const bool resumes = query.count("starting_after") > 0;
  if (resumes && (!absl::SimpleAtoi(query["starting_after"], &after) || after < 0)) {
    SendError(*responder, openai::Error{.message = "parameter 'starting_after' must be the number "
                                                   "of an event",
                                        .param = "starting_after"});
    return;
  }
  const ResponseStore::Found found = context.store->Find(id, context.generate.caller);
  const std::shared_ptr<InProgressResponse> running = found.running;
  if (running == nullptr && found.ended == nullptr) {
    SendError(*responder, ResponseNotFound(id));
    return;
  }
  if (query["stream"] != "true" && !resumes) {
    responder->Send(200, kJson, openai::Dump(running ? running->Snapshot() : found.ended->object));
    return;
  }
  if (running != nullptr ? !running->streams() : found.ended->events.empty()) {
    const bool lost = running == nullptr && found.ended->events_dropped;
    SendError(
        *responder,
        openai::Error{.message = lost ? "the events of this response were too many to be kept "
                                        "(espalierd --response-store-bytes); what it became "
                                        "is answered without 'stream'"
                                      : "only a response that was made with 'background' and "
                                        "'stream' can be streamed again",
                      .param = "stream"});
    return;
  }
  if (running != nullptr) {
    running->Watch(std::move(responder), after);
    return;
  }
  StartEventStream(*responder);
  WriteEvents(found.ended->events, after, *responder);
  responder->End();
}

void DeleteResponse(const std::string& id, const ResponsesContext& context, Responder responder) {
  const Caller& caller = context.generate.caller;
  const std::shared_ptr<InProgressResponse> running = context.store->Find(id, caller).running;
  if (!context.store->Erase(id, caller)) {
    SendError(*responder, ResponseNotFound(id));
    return;
  }
  if (running != nullptr) running->Cancel();
  responder->Send(200, kJson,
                  openai::Dump({{"id", id}, {"object", "response"}, {"deleted", true}}));
}

void CancelResponse(const std::string& id, const ResponsesContext& context, Responder responder) {
  const ResponseStore::Found found = context.store->Find(id, context.generate.caller);
  if (found.running != nullptr) {
    found.running->Cancel();
    responder->Send(200, kJson, openai::Dump(found.running->Snapshot()));
    return;
  }
  if (found.ended == nullptr) {
    SendError(*responder, ResponseNotFound(id));
    return;
  }
  if (found.ended->object["background"] != true) {
    SendError(*responder,
              openai::Error{.message = "only a response that runs in the background "
                                       "can be cancelled; to end another one, close its "
                                       "connection"});
    return;
  }
  responder->Send(200, kJson, openai::Dump(found.ended->object));  // already ended
}

void ListResponseInputItems(const HttpRequest& http, const std::string& id,
                            const ResponsesContext& context, Responder responder) {
  Query query;
  if (const auto error = ReadQuery(http, {"limit", "order", "after"}, &query)) {
    SendError(*responder, *error);
    return;
  }
  int limit = 20;
  if (query.count("limit") > 0 &&
      (!absl::SimpleAtoi(query["limit"], &limit) || limit < 1 || limit > 100)) {
    SendError(*responder,
              openai::Error{.message = "parameter 'limit' must be in 1..100", .param = "limit"});
    return;
  }
  const std::string order = query.count("order") > 0 ? query["order"] : "desc";
  if (order != "asc" && order != "desc") {
    SendError(*responder,
              openai::Error{.message = "parameter 'order' must be asc or desc", .param = "order"});
    return;
  }
  const ResponseStore::Found found = context.store->Find(id, context.generate.caller);
  if (found.ended == nullptr) {
    openai::Error error = ResponseNotFound(id);
    if (found.running != nullptr) error.message = "the response has not ended";
    if (found.running != nullptr) error.http_status = 409;
    SendError(*responder, error);
    return;
  }
  if (found.ended->conversation_dropped) {
    SendError(*responder, ConversationDropped(*found.ended));
    return;
  }
  json items = found.ended->input;
  if (order == "desc") std::reverse(items.begin(), items.end());
  auto first = items.begin();
  if (query.count("after") > 0) {
    first = std::find_if(items.begin(), items.end(),
                         [&](const json& item) { return item["id"] == query["after"]; });
    if (first == items.end()) {
      SendError(*responder, openai::Error{.message = "parameter 'after' is none of the items",
                                          .param = "after"});
      return;
    }
    ++first;
  }
  const auto last = items.end() - first > limit ? first + limit : items.end();
  const json data(json::array_t(first, last));
  responder->Send(200, kJson,
                  openai::Dump({{"object", "list"},
                                {"data", data},
                                {"first_id", data.empty() ? json() : data.front()["id"]},
                                {"last_id", data.empty() ? json() : data.back()["id"]},
                                {"has_more", last != items.end()}}));
}

}  // namespace espalier
