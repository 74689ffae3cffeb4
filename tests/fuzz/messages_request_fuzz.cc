// Fuzzes /v1/messages: any body is a request or an error with a message, never a crash.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "server/http/messages/messages_error.h"
#include "server/http/messages/messages_request.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace espalier;
  const std::string body(reinterpret_cast<const char*>(data), size);
  for (const auto purpose : {anthropic::Purpose::kAnswer, anthropic::Purpose::kCount}) {
    anthropic::MessagesRequest request;
    const auto error = anthropic::ParseMessages(purpose, body, &request);
    if (error) {
      if (error->message.empty() || error->http_status < 400) std::abort();
      anthropic::ErrorJson(*error);
    } else {
      if (request.generate.chat().turns().empty()) std::abort();
    }
  }
  return 0;
}
