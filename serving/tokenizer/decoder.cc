#include "serving/tokenizer/decoder.h"

#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "serving/tokenizer/byte_level_alphabet.h"
#include "serving/tokenizer/pattern.h"
#include "serving/tokenizer/unicode.h"
#include "serving/tokenizer/utf8_stream.h"

namespace espalier {
namespace {

using State = DecodeStep::State;

// A step that treats each string alike, except perhaps the first.
class PerToken : public DecodeStep {
 public:
  virtual std::string Change(std::string text, bool first) const = 0;

  std::unique_ptr<State> Start(bool fused) const override {
    if (fused) return nullptr;
    return std::make_unique<Each>(*this);
  }
  std::string DecodeMidText(std::string text, bool fused) const override {
    return Change(std::move(text), false);
  }

 private:
  class Each : public State {
   public:
    explicit Each(const PerToken& step) : step_(step) {}
    void Push(std::string text, std::vector<std::string>* out) override {
      out->push_back(step_.Change(std::move(text), first_));
      first_ = false;
    }

   private:
    const PerToken& step_;
    bool first_ = true;
  };
};

// The default without a decoder: blanks between tokens.
class BlankSeparated : public PerToken {
 public:
  std::string Change(std::string text, bool first) const override {
    return first ? text : " " + text;
  }
};

class ByteLevelDecoder : public DecodeStep {
 public:
  std::unique_ptr<State> Start(bool fused) const override {
    if (fused) return nullptr;
    return std::make_unique<Bytes>();
  }
  bool fuses() const override { return true; }
  std::string DecodeMidText(std::string text, bool) const override { return ToBytes(text); }

 private:
  // A token with characters outside the alphabet, such as an added token, is unchanged.
  static std::string ToBytes(const std::string& token) {
    return FromByteAlphabet(token).value_or(token);
  }

  class Bytes : public State {
   public:
    void Push(std::string text, std::vector<std::string>* out) override {
      out->push_back(stream_.Append(ToBytes(text)));
    }
    void End(std::vector<std::string>* out) override { out->push_back(stream_.Flush()); }

   private:
    Utf8Stream stream_;
  };
};

// A run of <0x..> tokens becomes one string if it is UTF-8, and one U+FFFD per byte otherwise. An
// invalid byte invalidates the whole run, however many characters are complete. So the run is held
// back until it ends, or until it can no longer be UTF-8, from when on each byte is final.
class ByteFallback : public DecodeStep {
 public:
  std::unique_ptr<State> Start(bool fused) const override {
    if (fused) return nullptr;
    return std::make_unique<Run>();
  }
  std::string DecodeMidText(std::string text, bool) const override {
    const std::optional<char> byte = Byte(text);
    return byte.has_value() ? std::string(1, *byte) : text;
  }

 private:
  static std::optional<char> Byte(absl::string_view token) {
    const auto digit = [](char c) -> int {
      if (absl::ascii_isdigit(c)) return c - '0';
      return absl::ascii_tolower(c) - 'a' + 10;
    };
    if (token.size() != 6 || !absl::StartsWith(token, "<0x") || token[5] != '>' ||
        !absl::ascii_isxdigit(static_cast<unsigned char>(token[3])) ||
        !absl::ascii_isxdigit(static_cast<unsigned char>(token[4]))) {
      return std::nullopt;
    }
    return static_cast<char>(digit(token[3]) << 4 | digit(token[4]));
  }

  class Run : public State {
   public:
    void Push(std::string text, std::vector<std::string>* out) override {
      if (const std::optional<char> byte = Byte(text); byte.has_value()) {
        bytes_.push_back(*byte);
        AppendCharacters(stream_.Append({&*byte, 1}), out);
        return;
      }
      End(out);
      out->push_back(std::move(text));
    }
    void End(std::vector<std::string>* out) override {
      AppendCharacters(stream_.Flush(), out);
      if (!bytes_.empty()) out->push_back(std::move(bytes_));
      *this = Run();
    }

   private:
    // `characters`: the decoded bytes behind the known characters. They differ from the bytes where
    // an invalid one was replaced.
    void AppendCharacters(const std::string& characters, std::vector<std::string>* out) {
      const absl::string_view held = bytes_;
      wrong_ = wrong_ || held.substr(known_, characters.size()) != characters;
      known_ += characters.size();
      if (!wrong_) return;
      out->insert(out->end(), bytes_.size(), "\xEF\xBF\xBD");
      bytes_.clear();
    }

    std::string bytes_;  // held back
    size_t known_ = 0;   // bytes of them that are complete characters
    bool wrong_ = false;
    Utf8Stream stream_;
  };
};

class Fuse : public DecodeStep {
 public:
  std::unique_ptr<State> Start(bool) const override { return std::make_unique<Pass>(); }
  bool fuses() const override { return true; }
  std::string DecodeMidText(std::string text, bool) const override { return text; }

 private:
  class Pass : public State {
   public:
    void Push(std::string text, std::vector<std::string>* out) override {
      out->push_back(std::move(text));
    }
  };
};

// Strips up to `start` and `stop` occurrences of a character from the ends.
class StripDecoder : public DecodeStep {
 public:
  StripDecoder(std::string content, int64_t start, int64_t stop)
      : content_(std::move(content)), start_(start), stop_(stop) {}

  std::unique_ptr<State> Start(bool fused) const override {
    if (fused && stop_ > 0) return nullptr;
    return std::make_unique<Ends>(*this, fused);
  }
  std::string DecodeMidText(std::string text, bool fused) const override {
    return fused ? text : Cut(std::move(text), start_).first;
  }

 private:
  // Returns the stripped text and how many more occurrences the beginning may lose.
  std::pair<std::string, int64_t> Cut(std::string text, int64_t start) const {
    size_t begin = 0, end = text.size();
    while (start > 0 && begin < end &&
           absl::StartsWith(absl::string_view(text).substr(begin), content_)) {
      begin += content_.size();
      --start;
    }
    if (begin < end) start = 0;
    for (int64_t n = 0;
         n < stop_ && begin < end &&
         absl::EndsWith(absl::string_view(text).substr(begin, end - begin), content_);
         ++n) {
      end -= content_.size();
    }
    return {text.substr(begin, end - begin), start};
  }

  class Ends : public State {
   public:
    Ends(const StripDecoder& step, bool fused) : step_(step), fused_(fused), start_(step.start_) {}
    void Push(std::string text, std::vector<std::string>* out) override {
      auto [cut, left] = step_.Cut(std::move(text), start_);
      if (fused_) start_ = left;
      out->push_back(std::move(cut));
    }

   private:
    const StripDecoder& step_;
    bool fused_;
    int64_t start_;
  };

  std::string content_;
  int64_t start_, stop_;
};

class MetaspaceDecoder : public PerToken {
 public:
  MetaspaceDecoder(std::string replacement, bool prepends)
      : replacement_(std::move(replacement)), prepends_(prepends) {}
  std::string Change(std::string text, bool first) const override {
    return absl::StrReplaceAll(text, {{replacement_, first && prepends_ ? "" : " "}});
  }

 private:
  std::string replacement_;
  bool prepends_;
};

// The clean-up of BERT's Python code: a sequence of replacements for English punctuation.
std::string Cleanup(std::string text) {
  static constexpr std::pair<absl::string_view, absl::string_view> kTidy[] = {
      {" .", "."},   {" ?", "?"},     {" !", "!"},    {" ,", ","},
      {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},  {" do not", " don't"},
      {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [from, to] : kTidy) text = absl::StrReplaceAll(text, {{from, to}});
  return text;
}

class WordPieceDecoder : public PerToken {
 public:
  WordPieceDecoder(std::string prefix, bool cleanup)
      : prefix_(std::move(prefix)), cleanup_(cleanup) {}
  std::string Change(std::string text, bool first) const override {
    if (!first) {
      text = absl::StartsWith(text, prefix_) ? text.substr(prefix_.size()) : " " + text;
    }
    return cleanup_ ? Cleanup(std::move(text)) : text;
  }

 private:
  std::string prefix_;
  bool cleanup_;
};

std::string ReplaceAll(const std::string& text, const std::string& from, const std::string& to) {
  return from.empty() ? text : absl::StrReplaceAll(text, {{from, to}});
}

// A suffix marks word ends, which become blanks except at the last word.
class BpeDecoder : public DecodeStep {
 public:
  explicit BpeDecoder(std::string suffix) : suffix_(std::move(suffix)) {}
  std::unique_ptr<State> Start(bool fused) const override {
    if (fused) return nullptr;
    return std::make_unique<HoldLast>(*this);
  }
  std::string DecodeMidText(std::string text, bool) const override {
    return ReplaceAll(text, suffix_, " ");
  }

 private:
  class HoldLast : public State {
   public:
    explicit HoldLast(const BpeDecoder& step) : step_(step) {}
    void Push(std::string text, std::vector<std::string>* out) override {
      if (last_.has_value()) out->push_back(ReplaceAll(*last_, step_.suffix_, " "));
      last_ = std::move(text);
    }
    void End(std::vector<std::string>* out) override {
      if (last_.has_value()) out->push_back(ReplaceAll(*last_, step_.suffix_, ""));
    }

   private:
    const BpeDecoder& step_;
    std::optional<std::string> last_;
  };

  std::string suffix_;
};

class ReplaceDecoder : public PerToken {
 public:
  ReplaceDecoder(Pattern pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}
  // If the pattern backtracks too much, the token is unchanged.
  std::string Change(std::string text, bool) const override {
    Pattern::Matches matches;
    if (!pattern_.FindAll(text, &matches).ok()) return text;
    std::string out;
    size_t at = 0;
    for (const auto& [begin, end] : matches) {
      absl::StrAppend(&out, text.substr(at, begin - at), content_);
      at = end;
    }
    return out + text.substr(at);
  }

 private:
  Pattern pattern_;
  std::string content_;
};

// Collapses repeated tokens (Graves et al., "Connectionist Temporal Classification", 2006).
class Ctc : public DecodeStep {
 public:
  Ctc(std::string pad, std::string delimiter, bool cleanup)
      : pad_(std::move(pad)), delimiter_(std::move(delimiter)), cleanup_(cleanup) {}
  std::unique_ptr<State> Start(bool fused) const override {
    if (fused) return nullptr;
    return std::make_unique<Once>(*this);
  }
  std::string DecodeMidText(std::string text, bool) const override {
    text = ReplaceAll(text, pad_, "");
    return cleanup_ ? ReplaceAll(Cleanup(std::move(text)), delimiter_, " ") : text;
  }

 private:
  class Once : public State {
   public:
    explicit Once(const Ctc& step) : step_(step) {}
    void Push(std::string text, std::vector<std::string>* out) override {
      if (text == last_) return;
      last_ = text;
      std::string changed = step_.DecodeMidText(std::move(text), false);
      if (!changed.empty()) out->push_back(std::move(changed));
    }

   private:
    const Ctc& step_;
    std::optional<std::string> last_;
  };

  std::string pad_, delimiter_;
  bool cleanup_;
};

// Collects the parts for a step that needs one whole string.
class WholeStringState : public State {
 public:
  explicit WholeStringState(std::unique_ptr<State> inner) : inner_(std::move(inner)) {}
  void Push(std::string text, std::vector<std::string>*) override { text_ += text; }
  void End(std::vector<std::string>* out) override {
    inner_->Push(std::move(text_), out);
    inner_->End(out);
  }

 private:
  std::unique_ptr<State> inner_;
  std::string text_;
};

std::string OneCharacter(const JsonReader& json, absl::string_view key) {
  std::string text = json.String(key);
  size_t at = 0;
  if (text.empty() || (NextCodePoint(text, &at), at != text.size())) {
    json.Invalid(absl::StrCat(key, " is not one character"));
  }
  return text;
}

std::unique_ptr<DecodeStep> MakeStep(const JsonReader& json, const std::string& type) {
  if (type == "ByteLevel") return std::make_unique<ByteLevelDecoder>();
  if (type == "ByteFallback") return std::make_unique<ByteFallback>();
  if (type == "Fuse") return std::make_unique<Fuse>();
  if (type == "Strip") {
    return std::make_unique<StripDecoder>(OneCharacter(json, "content"),
                                          json.Int("start", 0, INT32_MAX),
                                          json.Int("stop", 0, INT32_MAX));
  }
  if (type == "Metaspace") {
    const bool never =
        json.String("prepend_scheme", "always") == "never" || !json.Bool("add_prefix_space", true);
    return std::make_unique<MetaspaceDecoder>(OneCharacter(json, "replacement"), !never);
  }
  if (type == "WordPiece") {
    return std::make_unique<WordPieceDecoder>(json.String("prefix"), json.Bool("cleanup"));
  }
  if (type == "BPEDecoder") return std::make_unique<BpeDecoder>(json.String("suffix"));
  if (type == "Replace") {
    std::optional<Pattern> pattern = ReadPattern(json.Get("pattern"));
    std::string content = json.String("content");
    if (!pattern.has_value()) return nullptr;
    return std::make_unique<ReplaceDecoder>(*std::move(pattern), std::move(content));
  }
  if (type == "CTC") {
    return std::make_unique<Ctc>(json.String("pad_token"), json.String("word_delimiter_token"),
                                 json.Bool("cleanup"));
  }
  json.Unknown(absl::StrCat("type \"", type, "\" is not known"));
  return nullptr;
}

}  // namespace

Decoder Decoder::Make(const JsonReader* json) {
  Decoder decoder;
  if (json == nullptr) {
    decoder.Append(std::make_unique<BlankSeparated>());
  } else {
    decoder.Add(*json);
  }
  return decoder;
}

void Decoder::Add(const JsonReader& json) {
  const std::string type = json.String("type");
  if (!json.ok()) return;
  if (type != "Sequence") return Append(MakeStep(json, type));
  const JsonReader list = json.Get("decoders");
  for (size_t i = 0; i < list.size() && json.ok(); ++i) Add(list.At(i));
}

void Decoder::Append(std::unique_ptr<DecodeStep> step) {
  if (step == nullptr) return;
  const bool fused = !steps_.empty() && (steps_.back().fused || steps_.back().step->fuses());
  steps_.push_back({std::move(step), fused});
}

Decoder::Stream::Stream(const Decoder& decoder) {
  for (const Step& step : decoder.steps_) {
    std::unique_ptr<DecodeStep::State> state = step.step->Start(step.fused);
    if (state == nullptr) state = std::make_unique<WholeStringState>(step.step->Start(false));
    states_.push_back(std::move(state));
  }
}

std::vector<std::string> Decoder::Stream::Through(size_t step, std::vector<std::string> texts) {
  for (; step < states_.size() && !texts.empty(); ++step) {
    std::vector<std::string> next;
    for (std::string& text : texts) states_[step]->Push(std::move(text), &next);
    texts = std::move(next);
  }
  return texts;
}

std::string Decoder::Stream::Push(std::string token) {
  std::string out;
  for (const std::string& text : Through(0, {std::move(token)})) out += text;
  return out;
}

std::string Decoder::Stream::End() {
  std::string out;
  for (size_t step = 0; step < states_.size(); ++step) {
    std::vector<std::string> last;
    states_[step]->End(&last);
    for (const std::string& text : Through(step + 1, std::move(last))) out += text;
  }
  return out;
}

std::string Decoder::DecodeMidText(std::string token) const {
  for (const Step& step : steps_) token = step.step->DecodeMidText(std::move(token), step.fused);
  return token;
}

}  // namespace espalier
