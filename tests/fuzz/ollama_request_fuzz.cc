// Fuzzes Ollama's routes: any body is a request or an error with a message, never a crash.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>

#include "server/http/ollama/ollama_request.h"

namespace {

void CheckOllamaError(const std::optional<espalier::openai::Error>& error) {
  if (error && (error->message.empty() || error->http_status < 400)) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace espalier;
  const std::string body(reinterpret_cast<const char*>(data), size);
  ollama::Request generate, chat;
  CheckOllamaError(ollama::ParseGenerate(body, &generate));
  const auto error = ollama::ParseChat(body, &chat);
  CheckOllamaError(error);
  if (!error && chat.empty != chat.generate.chat().turns().empty()) std::abort();
  ollama::EmbedRequest embed, embeddings;
  CheckOllamaError(ollama::ParseEmbed(body, &embed));
  CheckOllamaError(ollama::ParseEmbeddings(body, &embeddings));
  std::string model;
  CheckOllamaError(ollama::ParseShow(body, &model));
  return 0;
}
