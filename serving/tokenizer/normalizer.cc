#include "serving/tokenizer/normalizer.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "serving/tokenizer/byte_level_alphabet.h"
#include "serving/tokenizer/pattern.h"
#include "serving/tokenizer/precompiled_charsmap.h"
#include "serving/tokenizer/unicode.h"

namespace espalier {
namespace {

// Bytes; every part between special tokens gets the prefix.
constexpr size_t kMaxPrepended = 4096;  // bytes

class NormalizerSequence : public Normalizer {
 public:
  explicit NormalizerSequence(std::vector<std::unique_ptr<Normalizer>> parts)
      : parts_(std::move(parts)) {}
  absl::Status Apply(std::string* text, bool* moved) const override {
    for (const auto& part : parts_) {
      if (absl::Status status = part->Apply(text, moved); !status.ok()) return status;
      if (text->size() > kMaxTextBytes)
        return absl::ResourceExhaustedError("the text grew too long");
    }
    return absl::OkStatus();
  }

 private:
  std::vector<std::unique_ptr<Normalizer>> parts_;
};

class Form : public Normalizer {
 public:
  explicit Form(NormalForm form) : form_(form) {}
  absl::Status Apply(std::string* text, bool*) const override {
    *text = Normalize(form_, *text);
    return absl::OkStatus();
  }

 private:
  NormalForm form_;
};

// Removes or replaces characters. `f` appends the replacement and returns whether the character
// stays.
template <typename F>
void EachCharacter(std::string* text, bool* moved, F f) {
  std::string out;
  out.reserve(text->size());
  bool first = true;
  for (size_t at = 0; at < text->size();) {
    const char32_t c = NextCodePoint(*text, &at);
    const bool stays = f(c, &out);
    if (first && !stays) *moved = true;
    first = false;
  }
  *text = std::move(out);
}

class Lowercase : public Normalizer {
 public:
  absl::Status Apply(std::string* text, bool* moved) const override {
    EachCharacter(text, moved, [](char32_t c, std::string* out) {
      AppendLowercase(c, out);
      return true;
    });
    return absl::OkStatus();
  }
};

class StripAccents : public Normalizer {
 public:
  absl::Status Apply(std::string* text, bool* moved) const override {
    EachCharacter(text, moved, [](char32_t c, std::string* out) {
      if (IsCombiningMark(c)) return false;
      AppendUtf8(c, out);
      return true;
    });
    return absl::OkStatus();
  }
};

class StripNormalizer : public Normalizer {
 public:
  StripNormalizer(bool left, bool right) : left_(left), right_(right) {}
  absl::Status Apply(std::string* text, bool* moved) const override {
    size_t begin = 0, end = text->size();
    while (left_ && begin < end) {
      size_t next = begin;
      if (!IsWhitespace(NextCodePoint(*text, &next))) break;
      begin = next;
    }
    while (right_ && end > begin) {
      const size_t last = PreviousCharacter(*text, end);
      size_t at = last;
      if (!IsWhitespace(NextCodePoint(*text, &at))) break;
      end = last;
    }
    if (begin > 0) *moved = true;
    *text = text->substr(begin, end - begin);
    return absl::OkStatus();
  }

 private:
  bool left_, right_;
};

class ReplaceNormalizer : public Normalizer {
 public:
  ReplaceNormalizer(Pattern pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}

  absl::Status Apply(std::string* text, bool* moved) const override {
    std::vector<std::pair<size_t, size_t>> matches;
    if (absl::Status status = pattern_.FindAll(*text, &matches); !status.ok()) return status;
    if (matches.empty()) return absl::OkStatus();
    if (matches.size() * content_.size() > kMaxTextBytes) {
      return absl::ResourceExhaustedError("the text grew too long");
    }
    // An insertion takes the place of the last character that it replaces.
    const auto [first, first_end] = matches[0];
    if (first == 0 && first_end > 0 &&
        (content_.empty() || PreviousCharacter(*text, first_end) > 0)) {
      *moved = true;
    }
    std::string out;
    size_t at = 0;
    for (const auto& [begin, end] : matches) {
      out.append(*text, at, begin - at);
      out += content_;
      at = end;
    }
    out.append(*text, at);
    *text = std::move(out);
    return absl::OkStatus();
  }

 private:
  Pattern pattern_;
  std::string content_;
};

class Prepend : public Normalizer {
 public:
  explicit Prepend(std::string what) : what_(std::move(what)) {}
  absl::Status Apply(std::string* text, bool*) const override {
    if (!text->empty()) text->insert(0, what_);
    return absl::OkStatus();
  }

 private:
  std::string what_;
};

bool IsBetween(char32_t c, char32_t first, char32_t last) { return c >= first && c <= last; }

class Nmt : public Normalizer {
 public:
  absl::Status Apply(std::string* text, bool* moved) const override {
    EachCharacter(text, moved, [](char32_t c, std::string* out) {
      if (IsBetween(c, 0x01, 0x08) || c == 0x0B || IsBetween(c, 0x0E, 0x1F) || c == 0x7F ||
          c == 0x8F || c == 0x9F) {
        return false;
      }
      const bool blank = c == 0x09 || c == 0x0A || c == 0x0C || c == 0x0D || c == 0x1680 ||
                         IsBetween(c, 0x200B, 0x200F) || c == 0x2028 || c == 0x2029 ||
                         c == 0x2581 || c == 0xFEFF || c == 0xFFFD;
      AppendUtf8(blank ? ' ' : c, out);
      return true;
    });
    return absl::OkStatus();
  }
};

class Bert : public Normalizer {
 public:
  Bert(bool clean, bool chinese, bool accents, bool lowercase)
      : clean_(clean), chinese_(chinese), accents_(accents), lowercase_(lowercase) {}

  absl::Status Apply(std::string* text, bool* moved) const override {
    if (clean_) {
      EachCharacter(text, moved, [](char32_t c, std::string* out) {
        const bool blank = c == '\t' || c == '\n' || c == '\r';
        if (c == 0 || c == 0xFFFD || (!blank && IsControlOrPrivate(c))) return false;
        AppendUtf8(IsWhitespace(c) ? ' ' : c, out);
        return true;
      });
    }
    if (chinese_) {
      EachCharacter(text, moved, [](char32_t c, std::string* out) {
        const bool ideograph = IsIdeograph(c);
        if (ideograph) out->push_back(' ');
        AppendUtf8(c, out);
        if (ideograph) out->push_back(' ');
        return true;
      });
    }
    if (accents_) {
      *text = Normalize(NormalForm::kNfd, *text);
      EachCharacter(text, moved, [](char32_t c, std::string* out) {
        if (IsNonspacingMark(c)) return false;
        AppendUtf8(c, out);
        return true;
      });
    }
    return lowercase_ ? Lowercase().Apply(text, moved) : absl::OkStatus();
  }

 private:
  // The library's list, including its gap.
  static bool IsIdeograph(char32_t c) {
    return IsBetween(c, 0x4E00, 0x9FFF) || IsBetween(c, 0x3400, 0x4DBF) ||
           IsBetween(c, 0x20000, 0x2A6DF) || IsBetween(c, 0x2A700, 0x2B73F) ||
           IsBetween(c, 0x2B740, 0x2B81F) || IsBetween(c, 0x2B920, 0x2CEAF) ||
           IsBetween(c, 0xF900, 0xFAFF) || IsBetween(c, 0x2F800, 0x2FA1F);
  }

  bool clean_, chinese_, accents_, lowercase_;
};

class Precompiled : public Normalizer {
 public:
  explicit Precompiled(PrecompiledCharsmap map) : map_(std::move(map)) {}
  absl::Status Apply(std::string* text, bool*) const override {
    *text = map_.Apply(*text);
    return absl::OkStatus();
  }

 private:
  PrecompiledCharsmap map_;
};

class ByteLevelNormalizer : public Normalizer {
 public:
  absl::Status Apply(std::string* text, bool*) const override {
    std::string out;
    AppendByteAlphabet(*text, &out);
    *text = std::move(out);
    return absl::OkStatus();
  }
};

std::unique_ptr<Normalizer> MakePrecompiled(const JsonReader& json) {
  std::string blob;
  const JsonReader field = json.Get("precompiled_charsmap");
  if (!absl::Base64Unescape(field.AsString(), &blob)) field.Invalid("is no base64");
  absl::StatusOr<PrecompiledCharsmap> map = PrecompiledCharsmap::Parse(blob);
  if (!map.ok()) {
    field.Take(map.status());
    return nullptr;
  }
  return std::make_unique<Precompiled>(*std::move(map));
}

}  // namespace

std::unique_ptr<Normalizer> MakeNormalizer(const JsonReader& json) {
  const std::string type = json.String("type");
  if (!json.ok()) return nullptr;
  if (type == "Sequence") {
    std::vector<std::unique_ptr<Normalizer>> parts;
    const JsonReader list = json.Get("normalizers");
    for (size_t i = 0; i < list.size() && json.ok(); ++i)
      parts.push_back(MakeNormalizer(list.At(i)));
    return std::make_unique<NormalizerSequence>(std::move(parts));
  }
  if (type == "NFC") return std::make_unique<Form>(NormalForm::kNfc);
  if (type == "NFD") return std::make_unique<Form>(NormalForm::kNfd);
  if (type == "NFKC") return std::make_unique<Form>(NormalForm::kNfkc);
  if (type == "NFKD") return std::make_unique<Form>(NormalForm::kNfkd);
  if (type == "Lowercase") return std::make_unique<Lowercase>();
  if (type == "StripAccents") return std::make_unique<StripAccents>();
  if (type == "Strip") {
    return std::make_unique<StripNormalizer>(json.Bool("strip_left"), json.Bool("strip_right"));
  }
  if (type == "Replace") {
    std::optional<Pattern> pattern = ReadPattern(json.Get("pattern"));
    std::string content = json.String("content");
    if (!pattern.has_value()) return nullptr;
    return std::make_unique<ReplaceNormalizer>(*std::move(pattern), std::move(content));
  }
  if (type == "Prepend") {
    std::string text = json.String("prepend");
    if (text.size() > kMaxPrepended) {
      json.Unknown(absl::StrCat("prepend has ", text.size(), " bytes; accepted: ", kMaxPrepended));
    }
    return std::make_unique<Prepend>(std::move(text));
  }
  if (type == "Nmt") return std::make_unique<Nmt>();
  if (type == "BertNormalizer" || type == "Bert") {
    const bool lowercase = json.Bool("lowercase");
    return std::make_unique<Bert>(json.Bool("clean_text"), json.Bool("handle_chinese_chars"),
                                  json.Bool("strip_accents", lowercase), lowercase);
  }
  if (type == "Precompiled") return MakePrecompiled(json);
  if (type == "ByteLevel") return std::make_unique<ByteLevelNormalizer>();
  json.Unknown(absl::StrCat("type \"", type, "\" is not known"));
  return nullptr;
}

}  // namespace espalier
