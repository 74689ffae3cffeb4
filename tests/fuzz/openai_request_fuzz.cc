// Fuzzes OpenAI requests: any untrusted body is a request or an error with a message. The first
// byte selects the endpoint.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "server/http/openai_embeddings.h"
#include "server/http/openai_request.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace espalier::openai;
  if (size == 0) return 0;
  const std::string body(reinterpret_cast<const char*>(data) + 1, size - 1);
  const int endpoint = data[0] % 5;
  if (endpoint == 4) {
    EmbeddingsRequest request;
    const auto error = ParseEmbeddings(body, &request);
    if (error && error->message.empty()) std::abort();
    return 0;
  }
  if (endpoint >= 2) {
    TokenizeRequest request;
    const auto error =
        endpoint == 2 ? ParseTokenize(body, &request) : ParseDetokenize(body, &request);
    if (error && error->message.empty()) std::abort();
    return 0;
  }
  Request request;
  const auto error = Parse(endpoint == 0 ? Kind::kChat : Kind::kCompletion, body, &request);
  if (error) {
    if (error->message.empty() || error->http_status < 400) std::abort();
    ToJson(*error);
    return 0;
  }
  return 0;
}
