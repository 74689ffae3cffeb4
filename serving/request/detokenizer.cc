#include "serving/request/detokenizer.h"

#include <algorithm>
#include <string>
#include <utility>

namespace espalier {
namespace {

// Prompt tokens that are decoded before the output; several, because some have no text.
constexpr size_t kBefore = 5;
// The largest distance of a UTF-8 character's first byte from its last one, which may all be
// tokens.
constexpr size_t kInCharacter = 3;

bool GoesOn(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

// Removes the prompt's text, part of which may be decoded only with the output.
class AfterPromptDecoder : public StreamDecoder {
 public:
  // `said`: the prompt's text if nothing follows.
  AfterPromptDecoder(std::unique_ptr<StreamDecoder> decoder, std::string said)
      : decoder_(std::move(decoder)), said_(std::move(said)) {}

  std::string Append(int token) override { return Behind(decoder_->Append(token)); }
  std::string Flush() override { return Behind(decoder_->Flush()); }

 private:
  std::string Behind(std::string text) {
    if (said_.empty() || text.empty()) return text;
    size_t same = 0;
    const size_t most = std::min(text.size(), said_.size());
    while (same < most && text[same] == said_[same]) ++same;
    if (same == text.size()) {
      said_.erase(0, same);
      return "";
    }
    // If the decoder gives other text, the output completed a character of the prompt.
    while (same > 0 && GoesOn(text[same])) --same;
    said_.clear();
    return text.substr(same);
  }

  const std::unique_ptr<StreamDecoder> decoder_;
  std::string said_;  // not decoded yet
};

}  // namespace

std::unique_ptr<StreamDecoder> NewDetokenizer(const Tokenizer& tokenizer,
                                              absl::Span<const int> prompt, bool show_special,
                                              const std::vector<int>& shown) {
  std::unique_ptr<StreamDecoder> decoder = tokenizer.NewStreamDecoder(show_special, shown);
  if (prompt.empty() || tokenizer.IsSpecial(prompt.back())) return decoder;
  const std::vector<int>& eos = tokenizer.eos();
  if (std::find(eos.begin(), eos.end(), prompt.back()) != eos.end()) return decoder;
  size_t begin = prompt.size() - std::min(prompt.size(), kBefore);
  for (size_t i = 0; i < kInCharacter && begin > 0; ++i, --begin) {
    const std::string bytes = tokenizer.TokenBytes(prompt[begin]);
    if (bytes.empty() || !GoesOn(bytes[0])) break;
  }
  const std::unique_ptr<StreamDecoder> alone = tokenizer.NewStreamDecoder(show_special, shown);
  std::string said;
  for (const int token : prompt.subspan(begin)) said += alone->Append(token);
  said += alone->Flush();
  auto behind = std::make_unique<AfterPromptDecoder>(std::move(decoder), std::move(said));
  for (const int token : prompt.subspan(begin)) behind->Append(token);
  return behind;
}

}  // namespace espalier
