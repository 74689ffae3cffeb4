#include "serving/tokenizer/byte_tokenizer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "serving/tokenizer/utf8_stream.h"

namespace espalier {
namespace {

class ByteStreamDecoder : public StreamDecoder {
 public:
  explicit ByteStreamDecoder(const std::vector<int>& eos) : eos_(eos) {}

  std::string Append(int token) override {
    if (token < 0 || token > 255) return "";
    if (std::find(eos_.begin(), eos_.end(), token) != eos_.end()) return "";
    const char byte = static_cast<char>(token);
    return stream_.Append(absl::string_view(&byte, 1));
  }
  std::string Flush() override { return stream_.Flush(); }

 private:
  std::vector<int> eos_;
  Utf8Stream stream_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ByteTokenizer>> ByteTokenizer::Create(int vocabulary,
                                                                     std::vector<int> eos) {
  if (vocabulary < 256) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the byte-level tokenizer needs a vocab_size of 256 or more, the model has ", vocabulary));
  }
  for (const int id : eos) {
    if (id < 0 || id >= vocabulary) {
      return absl::InvalidArgumentError(
          absl::StrCat("eos_token_id ", id, " is outside the vocabulary of ", vocabulary));
    }
  }
  return std::unique_ptr<ByteTokenizer>(new ByteTokenizer(vocabulary, std::move(eos)));
}

std::vector<int> ByteTokenizer::Encode(absl::string_view text) const {
  std::vector<int> tokens;
  tokens.reserve(text.size());
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

std::string ByteTokenizer::TokenBytes(int token) const {
  return token >= 0 && token < 256 ? std::string(1, static_cast<char>(token)) : "";
}

std::unique_ptr<StreamDecoder> ByteTokenizer::NewStreamDecoder() const {
  return std::make_unique<ByteStreamDecoder>(eos_);
}

}  // namespace espalier
