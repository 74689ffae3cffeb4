#include "serving/request/detokenizer.h"

#include <algorithm>
#include <string>
#include <utility>

namespace espalier {
namespace {

// Tokens of the prompt that are decoded before the answer: some have no text.
constexpr size_t kBefore = 5;
// The most that a character's first byte lies before its last one, each of them a token.
constexpr size_t kInCharacter = 3;

bool GoesOn(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

// Drops what a decoder says of the prompt, some of which may come only with the answer.
class BehindPrompt : public StreamDecoder {
 public:
  // `said`: what it says of the prompt if nothing comes behind.
  BehindPrompt(std::unique_ptr<StreamDecoder> decoder, std::string said)
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
    // Where it says something else after all, the answer has completed a character of the prompt.
    while (same > 0 && GoesOn(text[same])) --same;
    said_.clear();
    return text.substr(same);
  }

  const std::unique_ptr<StreamDecoder> decoder_;
  std::string said_;  // that is still to come
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
  auto behind = std::make_unique<BehindPrompt>(std::move(decoder), std::move(said));
  for (const int token : prompt.subspan(begin)) behind->Append(token);
  return behind;
}

}  // namespace espalier
