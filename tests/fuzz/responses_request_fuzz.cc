// Any body of /v1/responses is a request or an error with a message, never a crash; and the items
// that an input was read as are read as themselves when they come back.
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
  // Bytes that are no UTF-8 do not come back as they were.
  if (error || Dump(again.items) != Dump(request.items)) std::abort();
  const json no_items = json::array();
  for (const json& item : request.items) {
    if (item["type"] == "item_reference") return 0;  // the store has what it stands for
  }
  if (const auto wrong = FillChat(no_items, &request)) {
    if (wrong->message.empty()) std::abort();
  }
  return 0;
}
