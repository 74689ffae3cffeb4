#include "serving/tokenizer/hugging_face_tokenizer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/json/json_reader.h"
#include "serving/tokenizer/utf8_stream.h"

namespace espalier {

class HuggingFaceTokenizer::Stream : public StreamDecoder {
 public:
  Stream(const HuggingFaceTokenizer& tokenizer, bool show_special, std::vector<int> shown)
      : tokenizer_(tokenizer),
        show_special_(show_special),
        shown_(std::move(shown)),
        stream_(tokenizer.decoder_) {}

  std::string Append(int token) override {
    const bool hidden = tokenizer_.IsSpecial(token) || Contains(tokenizer_.eos_, token);
    if (hidden && !show_special_ && !Contains(shown_, token)) return "";
    const std::string* const spelling = tokenizer_.Spelling(token);
    return spelling == nullptr ? "" : stream_.Push(*spelling);
  }

  std::string Flush() override {
    std::string rest = stream_.End();
    stream_ = Decoder::Stream(tokenizer_.decoder_);
    return rest;
  }

 private:
  static bool Contains(const std::vector<int>& tokens, int token) {
    return std::find(tokens.begin(), tokens.end(), token) != tokens.end();
  }

  const HuggingFaceTokenizer& tokenizer_;
  const bool show_special_;
  const std::vector<int> shown_;
  Decoder::Stream stream_;
};

absl::StatusOr<std::unique_ptr<HuggingFaceTokenizer>> HuggingFaceTokenizer::Parse(
    absl::string_view text, int64_t limit, absl::Span<const std::string> special) {
  const absl::StatusOr<nlohmann::json> value = ParseJson(text, "tokenizer.json");
  if (!value.ok()) return value.status();
  absl::Status status;
  const JsonReader json(*value, "tokenizer.json: ", &status);
  if (!json.IsObject()) json.Invalid("expected an object");
  std::unique_ptr<HuggingFaceTokenizer> tokenizer(new HuggingFaceTokenizer);
  if (json.Has("normalizer")) tokenizer->normalizer_ = MakeNormalizer(json.Get("normalizer"));
  const bool byte_words =
      json.Has("pre_tokenizer") && EndsInByteLevel(json.Get("pre_tokenizer").value());
  tokenizer->model_ = MakeTokenModel(json.Get("model"), byte_words);
  if (!status.ok()) return status;
  const TokenModel& model = *tokenizer->model_;
  if (json.Has("pre_tokenizer")) {
    tokenizer->pre_tokenizer_ = MakePreTokenizer(json.Get("pre_tokenizer"), model.reads_bytes());
  }
  if (json.Has("added_tokens")) {
    tokenizer->added_.Read(json.Get("added_tokens"), model.vocabulary(),
                           tokenizer->normalizer_.get(), limit);
  }
  tokenizer->added_.Build(special, model.vocabulary());
  if (json.Has("post_processor")) tokenizer->post_processor_.Read(json.Get("post_processor"));
  if (json.Has("decoder")) {
    const JsonReader decoder = json.Get("decoder");
    tokenizer->decoder_ = Decoder::Make(&decoder);
  } else {
    tokenizer->decoder_ = Decoder::Make(nullptr);
  }
  if (!status.ok()) return status;
  tokenizer->vocabulary_ = std::max(model.vocabulary().max_id(), tokenizer->added_.max_id()) + 1;
  if (tokenizer->vocabulary_ == 0) {
    return absl::InvalidArgumentError("tokenizer.json: model.vocab: has no tokens");
  }
  for (const auto& [id, spelling] : tokenizer->omitted_added_tokens()) {
    if (!tokenizer->post_processor_.Adds(id)) continue;
    return absl::InvalidArgumentError(absl::StrCat("tokenizer.json: post_processor: adds \"",
                                                   spelling, "\", token ", id,
                                                   "; config.json has a vocab_size of ", limit));
  }
  return tokenizer;
}

void HuggingFaceTokenizer::SetBosAndEos(int bos, std::vector<int> eos) {
  bos_ = bos;
  eos_ = std::move(eos);
}

const std::string* HuggingFaceTokenizer::Spelling(int token) const {
  const std::string* const added = added_.Spelling(token);
  return added != nullptr ? added : model_->vocabulary().Spelling(token);
}

int HuggingFaceTokenizer::TokenId(absl::string_view spelling) const {
  const int added = added_.Id(spelling);
  return added >= 0 ? added : model_->vocabulary().Find(spelling);
}

std::string HuggingFaceTokenizer::TokenBytes(int token) const {
  const std::string* const spelling = Spelling(token);
  if (spelling == nullptr) return "";
  return IsSpecial(token) ? *spelling : decoder_.DecodeMidText(*spelling);
}

std::unique_ptr<StreamDecoder> HuggingFaceTokenizer::NewStreamDecoder() const {
  return NewStreamDecoder(false, {});
}

std::unique_ptr<StreamDecoder> HuggingFaceTokenizer::NewStreamDecoder(
    bool show_special, const std::vector<int>& shown) const {
  return std::make_unique<Stream>(*this, show_special, shown);
}

std::vector<int> HuggingFaceTokenizer::Encode(absl::string_view text) const {
  absl::StatusOr<std::vector<int>> tokens = TryEncode(text, EncodeOptions());
  return tokens.ok() ? *std::move(tokens) : std::vector<int>();
}

absl::StatusOr<std::vector<int>> HuggingFaceTokenizer::TryEncode(
    absl::string_view text, const EncodeOptions& options) const {
  if (text.size() > kMaxTextBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the text has ", text.size(), " bytes, accepted are ", kMaxTextBytes));
  }
  std::string repaired;
  if (!IsValidUtf8(text)) {
    Utf8Stream stream;
    repaired = stream.Append(text);
    repaired += stream.Flush();
    text = repaired;
  }
  std::vector<int> tokens;
  for (const AddedTokens::Piece& piece : added_.Find(text, false, options.parse_special)) {
    if (piece.token >= 0) {
      tokens.push_back(piece.token);
      continue;
    }
    const absl::Status status = EncodeText(text.substr(piece.begin, piece.end - piece.begin),
                                           piece.begin == 0, options.parse_special, &tokens);
    if (!status.ok()) return status;
  }
  if (options.add_special) tokens = post_processor_.Apply(std::move(tokens));
  return tokens;
}

absl::Status HuggingFaceTokenizer::EncodeText(absl::string_view text, bool at_start, bool special,
                                              std::vector<int>* tokens) const {
  std::string normalized;
  if (normalizer_ != nullptr) {
    normalized = std::string(text);
    bool moved = false;
    if (absl::Status status = normalizer_->Apply(&normalized, &moved); !status.ok()) return status;
    at_start = at_start && !moved;
    text = normalized;
  }
  for (const AddedTokens::Piece& piece : added_.Find(text, true, special)) {
    if (piece.token >= 0) {
      tokens->push_back(piece.token);
      continue;
    }
    const absl::Status status = EncodeNormalized(text.substr(piece.begin, piece.end - piece.begin),
                                                 at_start && piece.begin == 0, tokens);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status HuggingFaceTokenizer::EncodeNormalized(absl::string_view text, bool at_start,
                                                    std::vector<int>* tokens) const {
  if (pre_tokenizer_ == nullptr) return model_->Tokenize(text, tokens);
  Words words{std::string(text), {{0, text.size(), at_start}}};
  if (absl::Status status = pre_tokenizer_->Apply(&words); !status.ok()) return status;
  for (const Words::Span& span : words.spans) {
    if (absl::Status status = model_->Tokenize(words.word(span), tokens); !status.ok())
      return status;
  }
  return absl::OkStatus();
}

}  // namespace espalier
