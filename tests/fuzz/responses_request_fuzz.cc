// Fuzzes /v1/responses: any body is a request or an error with a message; parsed input items
// round-trip.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "server/http/responses/responses_request.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace espalier::openai;
  using json = nlohmann::ordered_json;
  ItemIds ids("1");
  ResponsesRequest request;
  const std::string body(reinterpret_cast<const char*>(data), size);
  if (const auto error = ParseResponses(body, &ids, &request)) {
    if (error->message.empty() || error->http_status < 400) std::abort();
    ToJson(*error);
    return 0;
  }
  const json back = {{"model", "m"}, {"input", request.items}};
  ResponsesRequest again;
  const auto error = ParseResponses(Dump(back), &ids, &again);
  // Invalid UTF-8 does not round-trip.
  if (error || Dump(again.items) != Dump(request.items)) std::abort();
  const json no_items = json::array();
  for (const json& item : request.items) {
    if (item["type"] == "item_reference") return 0;  // resolved by the store
  }
  if (const auto wrong = FillChat(no_items, &request)) {
    if (wrong->message.empty()) std::abort();
  }
  return 0;
}
