#include "serving/tokenizer/pre_tokenizer.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "serving/tokenizer/byte_level_alphabet.h"
#include "serving/tokenizer/normalizer.h"
#include "serving/tokenizer/pattern.h"
#include "serving/tokenizer/unicode.h"

namespace espalier {
namespace {

using Matches = Pattern::Matches;

constexpr char kGpt2Pattern[] =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// What happens to matches; names of Hugging Face's library.
enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

struct Part {
  size_t begin, end;
  bool match;
};

// Splits a word of `size` bytes into matches and the text between them.
std::vector<Part> Parts(size_t size, const Matches& matches, bool invert) {
  std::vector<Part> parts;
  parts.reserve(2 * matches.size() + 1);
  size_t at = 0;
  for (const auto& [begin, end] : matches) {
    if (at != begin) parts.push_back({at, begin, invert});
    parts.push_back({begin, end, !invert});
    at = end;
  }
  if (at != size) parts.push_back({at, size, invert});
  return parts;
}

// Merges matches with their neighbors.
std::vector<Part> Join(std::vector<Part> parts, Behavior behavior) {
  if (behavior == Behavior::kIsolated || behavior == Behavior::kRemoved) return parts;
  const bool backwards = behavior == Behavior::kMergedWithNext;
  if (backwards) std::reverse(parts.begin(), parts.end());
  std::vector<Part> joined;
  bool previous = false;
  for (const Part& part : parts) {
    const bool join =
        behavior == Behavior::kContiguous ? part.match == previous : part.match && !previous;
    if (join && !joined.empty()) {
      joined.back().begin = std::min(joined.back().begin, part.begin);
      joined.back().end = std::max(joined.back().end, part.end);
    } else {
      joined.push_back(part);
    }
    previous = part.match;
  }
  if (backwards) std::reverse(joined.begin(), joined.end());
  return joined;
}

// Splits every word. `find` appends the matches in a word.
template <typename Find>
absl::Status SplitWords(Words* words, Behavior behavior, bool invert, Find find) {
  std::vector<Words::Span> spans;
  spans.reserve(words->spans.size());
  Matches matches;
  for (const Words::Span& span : words->spans) {
    matches.clear();
    if (absl::Status status = find(words->word(span), &matches); !status.ok()) return status;
    for (const Part& part : Join(Parts(span.end - span.begin, matches, invert), behavior)) {
      if (part.begin == part.end || (behavior == Behavior::kRemoved && part.match)) continue;
      spans.push_back(
          {span.begin + part.begin, span.begin + part.end, span.at_start && part.begin == 0});
    }
  }
  words->spans = std::move(spans);
  return absl::OkStatus();
}

template <typename Is>
auto CharactersThat(Is is) {
  return [is](absl::string_view word, Matches* matches) {
    for (size_t at = 0; at < word.size();) {
      const size_t begin = at;
      if (is(NextCodePoint(word, &at))) matches->emplace_back(begin, at);
    }
    return absl::OkStatus();
  };
}

// Rewrites every word. `write` appends the replacement.
template <typename Write>
void Rewrite(Words* words, Write write) {
  std::string text;
  text.reserve(words->text.size());
  for (Words::Span& span : words->spans) {
    const size_t begin = text.size();
    write(words->word(span), span.at_start, &text);
    span.begin = begin;
    span.end = text.size();
  }
  words->text = std::move(text);
}

class PreTokenizerSequence : public PreTokenizer {
 public:
  explicit PreTokenizerSequence(std::vector<std::unique_ptr<PreTokenizer>> parts)
      : parts_(std::move(parts)) {}
  absl::Status Apply(Words* words) const override {
    for (const auto& part : parts_) {
      if (absl::Status status = part->Apply(words); !status.ok()) return status;
      if (words->text.size() > 2 * kMaxTextBytes) {
        return absl::ResourceExhaustedError("the text grew too long");
      }
    }
    return absl::OkStatus();
  }

 private:
  std::vector<std::unique_ptr<PreTokenizer>> parts_;
};

class Split : public PreTokenizer {
 public:
  Split(Pattern pattern, Behavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}
  absl::Status Apply(Words* words) const override {
    Pattern::Search search(pattern_);
    return SplitWords(words, behavior_, invert_, [&](absl::string_view word, Matches* matches) {
      return search.FindAll(word, matches);
    });
  }

 private:
  Pattern pattern_;
  Behavior behavior_;
  bool invert_;
};

class ByteLevelPreTokenizer : public PreTokenizer {
 public:
  ByteLevelPreTokenizer(bool add_prefix_space, std::optional<Split> split, bool raw_bytes)
      : add_prefix_space_(add_prefix_space), split_(std::move(split)), raw_bytes_(raw_bytes) {}

  absl::Status Apply(Words* words) const override {
    if (add_prefix_space_) {
      Rewrite(words, [](absl::string_view word, bool, std::string* out) {
        if (!absl::StartsWith(word, " ")) out->push_back(' ');
        absl::StrAppend(out, word);
      });
    }
    if (split_.has_value()) {
      if (absl::Status status = split_->Apply(words); !status.ok()) return status;
    }
    if (!raw_bytes_) {
      Rewrite(words, [](absl::string_view word, bool, std::string* out) {
        AppendByteAlphabet(word, out);
      });
    }
    return absl::OkStatus();
  }

 private:
  bool add_prefix_space_;
  std::optional<Split> split_;
  bool raw_bytes_;
};

enum class PrependScheme { kFirst, kNever, kAlways };

class MetaspacePreTokenizer : public PreTokenizer {
 public:
  MetaspacePreTokenizer(std::string replacement, PrependScheme scheme, bool split)
      : replacement_(std::move(replacement)), scheme_(scheme), split_(split) {}

  absl::Status Apply(Words* words) const override {
    Rewrite(words, [this](absl::string_view word, bool at_start, std::string* out) {
      const bool wanted =
          scheme_ == PrependScheme::kAlways || (scheme_ == PrependScheme::kFirst && at_start);
      if (wanted && !absl::StartsWith(word, " ") && !absl::StartsWith(word, replacement_)) {
        out->append(replacement_);
      }
      for (const char c : word) {
        if (c == ' ') {
          out->append(replacement_);
        } else {
          out->push_back(c);
        }
      }
    });
    if (!split_) return absl::OkStatus();
    const Pattern pattern(replacement_);
    Pattern::Search search(pattern);
    return SplitWords(
        words, Behavior::kMergedWithNext, false,
        [&](absl::string_view word, Matches* matches) { return search.FindAll(word, matches); });
  }

 private:
  std::string replacement_;
  PrependScheme scheme_;
  bool split_;
};

// Words of word characters and words of punctuation; drops white space.
class Whitespace : public PreTokenizer {
 public:
  absl::Status Apply(Words* words) const override {
    return SplitWords(words, Behavior::kRemoved, true,
                      [](absl::string_view word, Matches* matches) {
                        int previous = 0;
                        for (size_t at = 0; at < word.size();) {
                          const size_t begin = at;
                          const char32_t c = NextCodePoint(word, &at);
                          const int kind = IsWordCharacter(c) ? 1 : IsWhitespace(c) ? 0 : 2;
                          if (kind != 0 && kind == previous) {
                            matches->back().second = at;
                          } else if (kind != 0) {
                            matches->emplace_back(begin, at);
                          }
                          previous = kind;
                        }
                        return absl::OkStatus();
                      });
  }
};

class ByCharacter : public PreTokenizer {
 public:
  using Is = bool (*)(char32_t);
  ByCharacter(Is is, Behavior behavior) : is_(is), behavior_(behavior) {}
  absl::Status Apply(Words* words) const override {
    return SplitWords(words, behavior_, false, CharactersThat(is_));
  }

 private:
  Is is_;
  Behavior behavior_;
};

class FixedLength : public PreTokenizer {
 public:
  explicit FixedLength(size_t length) : length_(length) {}
  absl::Status Apply(Words* words) const override {
    return SplitWords(words, Behavior::kIsolated, false,
                      [this](absl::string_view word, Matches* matches) {
                        for (size_t at = 0; at < word.size();) {
                          const size_t begin = at;
                          for (size_t n = 0; n < length_ && at < word.size(); ++n) {
                            NextCodePoint(word, &at);
                          }
                          matches->emplace_back(begin, at);
                        }
                        return absl::OkStatus();
                      });
  }

 private:
  size_t length_;
};

class UnicodeScripts : public PreTokenizer {
 public:
  absl::Status Apply(Words* words) const override {
    return SplitWords(words, Behavior::kRemoved, true,
                      [](absl::string_view word, Matches* matches) {
                        std::optional<int> last;
                        size_t begin = 0;
                        bool begun = false;  // the library drops what precedes the first script
                        for (size_t at = 0; at < word.size();) {
                          const size_t here = at;
                          const int script = ScriptOf(NextCodePoint(word, &at));
                          if (script != kAnyScript && last != script) {
                            if (begun) matches->emplace_back(begin, here);
                            begin = here;
                            begun = true;
                          }
                          if (script != kAnyScript) last = script;
                        }
                        if (begun) matches->emplace_back(begin, word.size());
                        return absl::OkStatus();
                      });
  }
};

Behavior ReadBehavior(const JsonReader& json, std::optional<std::string> fallback) {
  const std::string name = json.String("behavior", std::move(fallback));
  if (name == "Removed") return Behavior::kRemoved;
  if (name == "Isolated") return Behavior::kIsolated;
  if (name == "MergedWithPrevious") return Behavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return Behavior::kMergedWithNext;
  if (name == "Contiguous") return Behavior::kContiguous;
  json.Unknown(absl::StrCat("behavior \"", name, "\" is not known"));
  return Behavior::kIsolated;
}

std::unique_ptr<PreTokenizer> MakeByteLevel(const JsonReader& json, bool raw_bytes) {
  std::optional<Split> split;
  if (json.Bool("use_regex", true)) {
    absl::StatusOr<Regex> regex = Regex::Compile(kGpt2Pattern);
    if (!regex.ok()) {
      json.Take(regex.status());
      return nullptr;
    }
    split.emplace(Pattern(*std::move(regex)), Behavior::kIsolated, false);
  }
  return std::make_unique<ByteLevelPreTokenizer>(json.Bool("add_prefix_space"), std::move(split),
                                                 raw_bytes);
}

std::unique_ptr<PreTokenizer> MakeMetaspace(const JsonReader& json) {
  const std::string replacement = json.String("replacement");
  const std::string name = json.String("prepend_scheme", "always");
  PrependScheme scheme = PrependScheme::kAlways;
  if (name == "first") {
    scheme = PrependScheme::kFirst;
  } else if (name == "never") {
    scheme = PrependScheme::kNever;
  } else if (name != "always") {
    json.Unknown(absl::StrCat("prepend_scheme \"", name, "\" is not known"));
  }
  if (!json.Bool("add_prefix_space", true)) {
    if (json.Has("prepend_scheme") && scheme != PrependScheme::kNever) {
      json.Invalid("add_prefix_space and prepend_scheme contradict each other");
    }
    scheme = PrependScheme::kNever;
  }
  size_t at = 0;
  if (replacement.empty() || (NextCodePoint(replacement, &at), at != replacement.size())) {
    json.Invalid("replacement is not one character");
    return nullptr;
  }
  return std::make_unique<MetaspacePreTokenizer>(replacement, scheme, json.Bool("split", true));
}

std::unique_ptr<PreTokenizer> MakeSequence(const JsonReader& json, bool raw_bytes) {
  std::vector<std::unique_ptr<PreTokenizer>> parts;
  const JsonReader list = json.Get("pretokenizers");
  for (size_t i = 0; i < list.size() && json.ok(); ++i) {
    parts.push_back(MakePreTokenizer(list.At(i), raw_bytes));
  }
  return std::make_unique<PreTokenizerSequence>(std::move(parts));
}

std::string TypeOf(const nlohmann::json& json) {
  if (!json.is_object()) return "";
  const auto type = json.find("type");
  return type != json.end() && type->is_string() ? type->get<std::string>() : "";
}

}  // namespace

bool EndsInByteLevel(const nlohmann::json& json) {
  const std::string type = TypeOf(json);
  if (type != "Sequence") return type == "ByteLevel";
  const auto parts = json.find("pretokenizers");
  if (parts == json.end() || !parts->is_array() || parts->empty()) return false;
  for (size_t i = 0; i + 1 < parts->size(); ++i) {
    const std::string inner = TypeOf((*parts)[i]);
    if (inner == "ByteLevel" || inner == "Sequence") return false;
  }
  return TypeOf(parts->back()) == "ByteLevel";
}

std::unique_ptr<PreTokenizer> MakePreTokenizer(const JsonReader& json, bool raw_bytes) {
  const std::string type = json.String("type");
  if (!json.ok()) return nullptr;
  if (type == "Sequence") return MakeSequence(json, raw_bytes);
  if (type == "ByteLevel") return MakeByteLevel(json, raw_bytes);
  if (type == "Metaspace") return MakeMetaspace(json);
  if (type == "Split") {
    std::optional<Pattern> pattern = ReadPattern(json.Get("pattern"));
    const Behavior behavior = ReadBehavior(json, std::nullopt);
    const bool invert = json.Bool("invert", false);
    if (!pattern.has_value()) return nullptr;
    return std::make_unique<Split>(*std::move(pattern), behavior, invert);
  }
  if (type == "Whitespace") return std::make_unique<Whitespace>();
  if (type == "WhitespaceSplit") {
    return std::make_unique<ByCharacter>(&IsWhitespace, Behavior::kRemoved);
  }
  if (type == "BertPreTokenizer") {
    std::vector<std::unique_ptr<PreTokenizer>> parts;
    parts.push_back(std::make_unique<ByCharacter>(&IsWhitespace, Behavior::kRemoved));
    parts.push_back(std::make_unique<ByCharacter>(&IsBertPunctuation, Behavior::kIsolated));
    return std::make_unique<PreTokenizerSequence>(std::move(parts));
  }
  if (type == "Digits") {
    return std::make_unique<ByCharacter>(
        &IsNumeric, json.Bool("individual_digits") ? Behavior::kIsolated : Behavior::kContiguous);
  }
  if (type == "Punctuation") {
    return std::make_unique<ByCharacter>(&IsBertPunctuation, ReadBehavior(json, "Isolated"));
  }
  if (type == "UnicodeScripts") return std::make_unique<UnicodeScripts>();
  if (type == "CharDelimiterSplit") {
    std::string delimiter = json.String("delimiter");
    if (delimiter.empty()) {
      json.Invalid("delimiter is empty");
      return nullptr;
    }
    return std::make_unique<Split>(Pattern(std::move(delimiter)), Behavior::kRemoved, false);
  }
  if (type == "FixedLength") {
    return std::make_unique<FixedLength>(static_cast<size_t>(json.Int("length", 1, INT32_MAX, 5)));
  }
  json.Unknown(absl::StrCat("type \"", type, "\" is not known"));
  return nullptr;
}

}  // namespace espalier
