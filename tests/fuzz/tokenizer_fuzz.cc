// Fuzzes tokenizer.json: any bytes are a tokenizer that encodes and decodes, or an error. A text to
// encode may follow after a NUL.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>

#include "serving/tokenizer/tokenizer_files.h"
#include "serving/tokenizer/utf8_stream.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace espalier;
  const std::string input(reinterpret_cast<const char*>(data), size);
  const size_t end = std::min(input.find('\0'), input.size());
  TokenizerFiles files;
  files.tokenizer_json = input.substr(0, end);
  const auto tokenizer = LoadTokenizer(files);
  if (!tokenizer.ok()) return 0;
  std::string text = "In the b\xC3\xA9ginning \xE6\xBC\xA2  <s> 1234\n\xF0\x9F\x98\x80 \xFF";
  if (end < input.size()) text += input.substr(end);
  for (const bool special : {false, true}) {
    const auto tokens =
        (*tokenizer)->TryEncode(text, {.add_special = special, .parse_special = special});
    if (!tokens.ok()) continue;
    const auto stream = (*tokenizer)->NewStreamDecoder(special, {});
    for (const int token : *tokens) {
      // Tokens added by post-processors need not be in the vocabulary; all others are.
      if (!special && (token < 0 || token >= (*tokenizer)->vocabulary())) std::abort();
      if (!IsValidUtf8(stream->Append(token))) std::abort();
      (*tokenizer)->TokenBytes(token);
    }
    if (!IsValidUtf8(stream->Flush())) std::abort();
  }
  return 0;
}
