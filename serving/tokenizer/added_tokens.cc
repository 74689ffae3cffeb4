#include "serving/tokenizer/added_tokens.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "serving/tokenizer/unicode.h"

namespace espalier {
namespace {

// Maximum length of such a token, which bounds the search at each position.
constexpr size_t kMaxBytes = 4096;

bool EndsWithWord(absl::string_view text) {
  if (text.empty()) return false;
  size_t at = PreviousCharacter(text, text.size());
  return IsWordCharacter(NextCodePoint(text, &at));
}

bool BeginsWithWord(absl::string_view text) {
  size_t at = 0;
  return !text.empty() && IsWordCharacter(NextCodePoint(text, &at));
}

size_t SpacesAtEnd(absl::string_view text) {
  size_t begin = text.size();
  while (begin > 0) {
    const size_t previous = PreviousCharacter(text, begin);
    size_t at = previous;
    if (!IsWhitespace(NextCodePoint(text, &at))) break;
    begin = previous;
  }
  return text.size() - begin;
}

size_t SpacesAtBegin(absl::string_view text) {
  size_t end = 0;
  while (end < text.size()) {
    size_t at = end;
    if (!IsWhitespace(NextCodePoint(text, &at))) break;
    end = at;
  }
  return end;
}

}  // namespace

void AddedTokens::Read(const JsonReader& json, const Vocabulary& vocabulary,
                       const Normalizer* normalizer, int64_t limit) {
  int next_id = static_cast<int>(vocabulary.size());
  const size_t n = json.size();
  for (size_t i = 0; i < n && json.ok(); ++i) {
    const JsonReader entry = json.At(i);
    Token token;
    token.content = entry.String("content");
    token.single_word = entry.Bool("single_word", false);
    token.left_strip = entry.Bool("lstrip", false);
    token.right_strip = entry.Bool("rstrip", false);
    token.normalized = entry.Bool("normalized", true);
    token.special = entry.Bool("special", false);
    if (token.content.size() > kMaxBytes) {
      entry.Invalid(
          absl::StrCat("content has ", token.content.size(), " bytes, accepted are ", kMaxBytes));
    }
    if (!json.ok()) return;
    if (!token.content.empty())
      Add(std::move(token), entry, vocabulary, normalizer, limit, &next_id);
  }
}

void AddedTokens::Build(absl::Span<const std::string> special, const Vocabulary& vocabulary) {
  for (const std::string& spelling : special) {
    const int id = vocabulary.Find(spelling);
    if (id < 0 || spelling.empty() || spelling.size() > kMaxBytes || ids_.contains(spelling)) {
      continue;
    }
    ids_[spelling] = id;
    special_.insert(id);
    special_spellings_.insert(spelling);
    Token token{.content = spelling, .decoded = spelling};
    token.special = true;
    tokens_.insert_or_assign(id, std::move(token));
    max_id_ = std::max(max_id_, id);
  }
  for (const auto& [id, token] : tokens_) {
    (token.normalized ? normalized_ : plain_)
        .Add(token.normalized ? token.decoded : token.content, id);
  }
  plain_.Build();
  normalized_.Build();
}

void AddedTokens::Add(Token token, const JsonReader& json, const Vocabulary& vocabulary,
                      const Normalizer* normalizer, int64_t limit, int* next_id) {
  token.decoded = token.content;
  if (token.normalized && normalizer != nullptr) {
    bool moved = false;
    if (absl::Status status = normalizer->Apply(&token.decoded, &moved); !status.ok()) {
      return json.Take(status);
    }
    if (token.decoded.size() > kMaxBytes) return json.Invalid("grows too long by normalisation");
  }
  const auto known = ids_.find(token.content);
  int id = known != ids_.end() ? known->second : vocabulary.Find(token.content);
  const bool added = id < 0;
  if (added) id = (*next_id)++;
  if (id >= kMaxTokenId) return json.Invalid("the ids are used up");
  ids_[token.content] = id;
  if (omitted_.contains(id) || (added && id >= limit)) {
    omitted_[id] = std::move(token.content);
    return;
  }
  max_id_ = std::max(max_id_, id);
  if (token.special) {
    special_.insert(id);
    special_spellings_.insert(token.content);
  }
  tokens_.insert_or_assign(id, std::move(token));
}

const std::string* AddedTokens::Spelling(int id) const {
  const auto found = tokens_.find(id);
  return found == tokens_.end() ? nullptr : &found->second.decoded;
}

int AddedTokens::Id(absl::string_view content) const {
  const auto found = ids_.find(content);
  return found == ids_.end() || omitted_.contains(found->second) ? -1 : found->second;
}

std::vector<AddedTokens::Piece> AddedTokens::Find(absl::string_view text, bool normalized,
                                                  bool special) const {
  const ByteTrie& trie = normalized ? normalized_ : plain_;
  std::vector<Piece> pieces;
  size_t done = 0;  // end of the last piece
  for (size_t at = 0; !trie.empty() && at < text.size();) {
    size_t length = 0;
    int id = -1;
    trie.Prefixes(text.substr(at, kMaxBytes), [&](size_t n, int value) {
      length = n;
      id = value;
    });
    if (id < 0) {
      ++at;
      continue;
    }
    size_t begin = at, end = at + length;
    at = end;  // text inside a match is not searched again
    const Token& token = tokens_.find(id)->second;
    if (token.special && !special) continue;
    if (token.single_word &&
        (EndsWithWord(text.substr(0, begin)) || BeginsWithWord(text.substr(end)))) {
      continue;
    }
    if (token.left_strip) begin = std::max(done, begin - SpacesAtEnd(text.substr(0, begin)));
    if (token.right_strip) end += SpacesAtBegin(text.substr(end));
    if (done < begin) pieces.push_back({done, begin, -1});
    pieces.push_back({begin, end, id});
    done = end;
  }
  if (done < text.size()) pieces.push_back({done, text.size(), -1});
  return pieces;
}

}  // namespace espalier
