// Byte pair encoding (Sennrich, Haddow and Birch, "Neural Machine Translation of Rare Words with
// Subword Units", 2016): repeatedly merges the adjacent pair that was learned first until no known
// pair remains.
#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <queue>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "serving/tokenizer/byte_level_alphabet.h"
#include "serving/tokenizer/token_model.h"
#include "serving/tokenizer/unicode.h"

namespace espalier {
namespace {

// Words of up to so many symbols are merged by scanning all pairs each time, which is faster than a
// heap. Nearly all words are shorter.
constexpr size_t kMaxScannedSymbols = 48;
constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();

struct Merge {
  uint32_t rank = kNone;
  int token = -1;
};

struct Options {
  std::optional<std::string> unknown;
  std::string prefix;  // of every symbol except a word's first
  std::string suffix;  // of a word's last symbol
  bool fuse_unknown = false;
  bool byte_fallback = false;
  bool ignore_merges = false;
};

class Bpe : public TokenModel {
 public:
  Bpe(Vocabulary vocabulary, absl::flat_hash_map<uint64_t, Merge> merges, Options options,
      bool byte_words)
      : merges_(std::move(merges)), options_(std::move(options)) {
    vocabulary_ = std::move(vocabulary);
    for (int byte = 0; byte < 256; ++byte) {
      const auto value = static_cast<unsigned char>(byte);
      byte_tokens_[byte] = vocabulary_.Find(ByteTokenSpelling(value));
      std::string character;
      AppendUtf8(ByteCharacter(value), &character);
      symbols_[byte] = vocabulary_.Find(character);
    }
    all_bytes_ =
        std::all_of(byte_tokens_.begin(), byte_tokens_.end(), [](int id) { return id >= 0; });
    reads_bytes_ = byte_words && options_.prefix.empty() && options_.suffix.empty() &&
                   std::all_of(symbols_.begin(), symbols_.end(), [](int id) { return id >= 0; });
    cuts_ = !reads_bytes_ && !options_.ignore_merges && options_.prefix.empty() &&
            options_.suffix.empty();
    if (cuts_) LearnNeighbours();
    CacheWholeWords();
  }

  bool reads_bytes() const override { return reads_bytes_; }

  absl::Status Tokenize(absl::string_view word, std::vector<int>* tokens) const override {
    if (const auto whole = words_.find(word); whole != words_.end()) {
      tokens->push_back(whole->second);
      return absl::OkStatus();
    }
    if (!cuts_) return MergeWord(word, tokens);
    // SentencePiece models take a whole text as one word. No merge crosses two adjacent characters
    // that are not adjacent in any token, so the word can be split there.
    size_t begin = 0;
    char32_t previous = 0;  // 0: none, or no token
    for (size_t at = 0; at < word.size();) {
      const size_t here = at;
      const char32_t c = NextCodePoint(word, &at);
      const bool known = characters_.contains(c);
      if (known && previous != 0 && !neighbours_.contains(Pair(previous, c))) {
        if (absl::Status status = Segment(word.substr(begin, here - begin), tokens); !status.ok()) {
          return status;
        }
        begin = here;
      }
      previous = known ? c : 0;
    }
    return Segment(word.substr(begin), tokens);
  }

 private:
  static uint64_t Pair(char32_t a, char32_t b) { return static_cast<uint64_t>(a) << 32 | b; }

  absl::Status Segment(absl::string_view segment, std::vector<int>* tokens) const {
    if (const auto whole = words_.find(segment); whole != words_.end()) {
      tokens->push_back(whole->second);
      return absl::OkStatus();
    }
    return MergeWord(segment, tokens);
  }

  void LearnNeighbours() {
    for (const auto& [spelling, id] : vocabulary_.ids()) {
      char32_t previous = 0;
      size_t at = 0;
      while (at < spelling.size()) {
        const size_t begin = at;
        const char32_t c = NextCodePoint(spelling, &at);
        if (begin == 0 && at == spelling.size()) characters_.insert(c);
        if (begin > 0) neighbours_.insert(Pair(previous, c));
        previous = c;
      }
    }
  }

  // Caches words that encode to one token, so that most words cost one lookup. Without
  // ignore_merges, a word in the vocabulary is not always the result of merging.
  void CacheWholeWords() {
    std::vector<int> tokens;
    for (const auto& [spelling, id] : vocabulary_.ids()) {
      if (spelling.empty()) continue;
      const std::optional<std::string> word =
          reads_bytes_ ? FromByteAlphabet(spelling) : std::optional<std::string>(spelling);
      if (!word.has_value()) continue;
      tokens.clear();
      const bool whole = options_.ignore_merges ||
                         (MergeWord(*word, &tokens).ok() && tokens.size() == 1 && tokens[0] == id);
      if (whole) words_.emplace(*word, id);
    }
  }

  absl::Status MergeWord(absl::string_view word, std::vector<int>* tokens) const {
    const size_t begin = tokens->size();
    if (reads_bytes_) {
      tokens->reserve(begin + word.size());
      for (const char c : word) tokens->push_back(symbols_[static_cast<unsigned char>(c)]);
    } else if (absl::Status status = InitialSymbols(word, tokens); !status.ok()) {
      return status;
    }
    if (tokens->size() - begin <= kMaxScannedSymbols) {
      MergeShort(begin, tokens);
    } else {
      MergeLong(begin, tokens);
    }
    return absl::OkStatus();
  }

  // The initial symbols of a word: one per character, or its bytes, or the unknown token. A
  // character without any of these gets no token, as in the library.
  absl::Status InitialSymbols(absl::string_view word, std::vector<int>* tokens) const {
    std::string symbol;
    bool unknown = false;  // one is pending, to be fused with the next
    const auto put_unknown = [&]() -> absl::Status {
      const int id = vocabulary_.Find(*options_.unknown);
      if (id < 0) {
        return absl::InvalidArgumentError(
            absl::StrCat("the text has a character without a token, and the token for unknown "
                         "ones, \"",
                         *options_.unknown, "\", is not in the vocabulary"));
      }
      tokens->push_back(id);
      return absl::OkStatus();
    };
    for (size_t at = 0; at < word.size();) {
      const size_t begin = at;
      NextCodePoint(word, &at);
      symbol = begin > 0 ? options_.prefix : "";
      absl::StrAppend(&symbol, word.substr(begin, at - begin));
      if (at == word.size()) symbol += options_.suffix;
      if (const int id = vocabulary_.Find(symbol); id >= 0) {
        if (unknown) {
          if (absl::Status status = put_unknown(); !status.ok()) return status;
        }
        unknown = false;
        tokens->push_back(id);
        continue;
      }
      if (options_.byte_fallback && HasByteTokens(symbol)) {
        // The library writes a pending unknown token after these.
        for (const char c : symbol) tokens->push_back(byte_tokens_[static_cast<unsigned char>(c)]);
        continue;
      }
      if (!options_.unknown.has_value()) continue;
      if (unknown && !options_.fuse_unknown) {
        if (absl::Status status = put_unknown(); !status.ok()) return status;
      }
      unknown = true;
    }
    return unknown ? put_unknown() : absl::OkStatus();
  }

  bool HasByteTokens(absl::string_view text) const {
    return all_bytes_ || std::all_of(text.begin(), text.end(), [this](char c) {
             return byte_tokens_[static_cast<unsigned char>(c)] >= 0;
           });
  }

  Merge Find(int left, int right) const {
    const auto found =
        merges_.find(static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right));
    return found == merges_.end() ? Merge() : found->second;
  }

  // Merges tokens[begin..) in place.
  void MergeShort(size_t begin, std::vector<int>* tokens) const {
    int* const symbols = tokens->data() + begin;
    size_t n = tokens->size() - begin;
    std::array<Merge, kMaxScannedSymbols> pairs;  // pairs[i]: symbols i and i + 1
    for (size_t i = 0; i + 1 < n; ++i) pairs[i] = Find(symbols[i], symbols[i + 1]);
    while (n > 1) {
      size_t best = 0;
      for (size_t i = 1; i + 1 < n; ++i) {
        if (pairs[i].rank < pairs[best].rank) best = i;
      }
      if (pairs[best].rank == kNone) break;
      symbols[best] = pairs[best].token;
      std::copy(symbols + best + 2, symbols + n, symbols + best + 1);
      if (best + 2 < n) std::copy(&pairs[best + 2], &pairs[n - 1], &pairs[best + 1]);
      --n;
      if (best + 1 < n) pairs[best] = Find(symbols[best], symbols[best + 1]);
      if (best > 0) pairs[best - 1] = Find(symbols[best - 1], symbols[best]);
    }
    tokens->resize(begin + n);
  }

  // As MergeShort, with a heap and a linked list; O(n log n).
  void MergeLong(size_t begin, std::vector<int>* tokens) const {
    constexpr int32_t kEnd = -1;
    struct Symbol {
      int token;
      int32_t previous, next;
    };
    struct Candidate {
      uint32_t rank;
      int32_t at;
      int left, right, token;
      bool operator<(const Candidate& other) const {  // std::priority_queue returns the largest
        return std::pair(rank, at) > std::pair(other.rank, other.at);
      }
    };
    const auto n = static_cast<int32_t>(tokens->size() - begin);
    std::vector<Symbol> symbols(static_cast<size_t>(n));
    for (int32_t i = 0; i < n; ++i) {
      symbols[i] = {(*tokens)[begin + i], i - 1, i + 1 < n ? i + 1 : kEnd};
    }
    std::priority_queue<Candidate> heap;
    const auto consider = [&](int32_t at) {
      const int left = symbols[at].token, right = symbols[symbols[at].next].token;
      const Merge merge = Find(left, right);
      if (merge.rank != kNone) heap.push({merge.rank, at, left, right, merge.token});
    };
    for (int32_t i = 0; i + 1 < n; ++i) consider(i);
    while (!heap.empty()) {
      const Candidate top = heap.top();
      heap.pop();
      Symbol& symbol = symbols[top.at];
      // Skip candidates that an earlier merge has changed. A removed symbol has token -1.
      if (symbol.token != top.left || symbol.next == kEnd ||
          symbols[symbol.next].token != top.right) {
        continue;
      }
      symbol.token = top.token;
      Symbol& gone = symbols[symbol.next];
      gone.token = -1;
      symbol.next = gone.next;
      if (symbol.next != kEnd) {
        symbols[symbol.next].previous = top.at;
        consider(top.at);
      }
      if (symbol.previous != kEnd) consider(symbol.previous);
    }
    size_t out = begin;
    for (int32_t at = 0; at != kEnd; at = symbols[at].next) (*tokens)[out++] = symbols[at].token;
    tokens->resize(out);
  }

  absl::flat_hash_map<uint64_t, Merge> merges_;
  Options options_;
  absl::flat_hash_map<std::string, int> words_;
  std::array<int, 256> byte_tokens_;  // <0x00> and so on; -1: none
  std::array<int, 256> symbols_;      // of the byte-level alphabet
  // For splitting words: characters that are tokens, and pairs that are adjacent in some token.
  absl::flat_hash_set<char32_t> characters_;
  absl::flat_hash_set<uint64_t> neighbours_;
  bool cuts_ = false;
  bool all_bytes_ = false;
  bool reads_bytes_ = false;
};

// A merge is "left right" in old files and ["left", "right"] in new ones.
std::optional<std::pair<std::string, std::string>> ReadMerge(const nlohmann::json& merge) {
  if (merge.is_array()) {
    if (merge.size() != 2 || !merge[0].is_string() || !merge[1].is_string()) return std::nullopt;
    return std::pair(merge[0].get<std::string>(), merge[1].get<std::string>());
  }
  if (!merge.is_string()) return std::nullopt;
  const std::string& text = merge.get_ref<const std::string&>();
  const size_t space = text.find(' ');
  if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos)
    return std::nullopt;
  return std::pair(text.substr(0, space), text.substr(space + 1));
}

absl::flat_hash_map<uint64_t, Merge> ReadMerges(const JsonReader& json,
                                                const Vocabulary& vocabulary,
                                                const std::string& prefix) {
  absl::flat_hash_map<uint64_t, Merge> merges;
  const size_t n = json.size();
  merges.reserve(n);
  uint32_t rank = 0;
  for (size_t i = 0; i < n && json.ok(); ++i) {
    const nlohmann::json& entry = json.value()[i];
    if (entry.is_string() && absl::StartsWith(entry.get_ref<const std::string&>(), "#version"))
      continue;
    const auto merge = ReadMerge(entry);
    if (!merge.has_value()) {
      json.At(i).Invalid("expected \"left right\" or [\"left\", \"right\"]");
      break;
    }
    const auto& [left, right] = *merge;
    if (right.size() < prefix.size()) {
      json.At(i).Invalid("the right side is shorter than continuing_subword_prefix");
      break;
    }
    const std::string whole = left + right.substr(prefix.size());
    const int left_id = vocabulary.Find(left), right_id = vocabulary.Find(right);
    const int id = vocabulary.Find(whole);
    if (left_id < 0 || right_id < 0 || id < 0) {
      const std::string& missing = left_id < 0 ? left : right_id < 0 ? right : whole;
      json.At(i).Invalid(absl::StrCat("\"", missing.substr(0, 60), "\" is not in the vocabulary"));
      break;
    }
    merges.insert_or_assign(static_cast<uint64_t>(left_id) << 32 | static_cast<uint32_t>(right_id),
                            Merge{rank++, id});
  }
  return merges;
}

}  // namespace

std::unique_ptr<TokenModel> MakeBpe(const JsonReader& json, bool byte_words) {
  if (json.Number("dropout", 0) != 0) {
    json.Unknown("dropout would make the tokens of a text random; remove it");
  }
  Options options;
  if (json.Has("unk_token")) options.unknown = json.String("unk_token");
  options.prefix = json.String("continuing_subword_prefix", "");
  options.suffix = json.String("end_of_word_suffix", "");
  options.fuse_unknown = json.Bool("fuse_unk", false);
  options.byte_fallback = json.Bool("byte_fallback", false);
  options.ignore_merges = json.Bool("ignore_merges", false);
  Vocabulary vocabulary;
  ReadVocabulary(json.Get("vocab"), &vocabulary);
  absl::flat_hash_map<uint64_t, Merge> merges =
      ReadMerges(json.Get("merges"), vocabulary, options.prefix);
  if (!json.ok()) return nullptr;
  return std::make_unique<Bpe>(std::move(vocabulary), std::move(merges), std::move(options),
                               byte_words);
}

}  // namespace espalier
