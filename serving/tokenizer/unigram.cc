// The unigram language model (Kudo, "Subword Regularization", 2018): finds the most probable
// segmentation of a word into tokens by the Viterbi algorithm.
#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "serving/tokenizer/byte_trie.h"
#include "serving/tokenizer/token_model.h"
#include "serving/tokenizer/unicode.h"

namespace espalier {
namespace {

// Penalty of an unknown character relative to the least probable token, as in SentencePiece.
constexpr double kUnknownPenalty = 10;

class Unigram : public TokenModel {
 public:
  Unigram(std::vector<std::pair<std::string, double>> tokens, std::optional<int> unknown,
          bool byte_fallback)
      : unknown_(unknown), byte_fallback_(byte_fallback) {
    double least = std::numeric_limits<double>::infinity();
    scores_.reserve(tokens.size());
    for (const auto& [spelling, score] : tokens) {
      least = std::min(least, score);
      vocabulary_.Add(spelling, static_cast<int>(scores_.size()));
      scores_.push_back(score);
    }
    unknown_score_ = least - kUnknownPenalty;
    for (const auto& [spelling, id] : vocabulary_.ids()) trie_.Add(spelling, id);
    trie_.Build();
    for (int byte = 0; byte < 256; ++byte) {
      bytes_[byte] = vocabulary_.Find(ByteTokenSpelling(static_cast<unsigned char>(byte)));
    }
  }

  absl::Status Tokenize(absl::string_view word, std::vector<int>* tokens) const override {
    struct Best {
      double score = 0;
      size_t begin = 0;
      int token = -1;  // the token that ends here; -1: none yet
    };
    std::vector<Best> best(word.size() + 1);
    const auto offer = [&](size_t begin, size_t end, double score, int token) {
      Best& there = best[end];
      if (there.token < 0 || score > there.score) there = {score, begin, token};
    };
    for (size_t at = 0; at < word.size();) {
      size_t next = at;
      NextCodePoint(word, &next);
      const double here = best[at].score;
      bool single = false;
      trie_.Prefixes(word.substr(at), [&](size_t length, int token) {
        offer(at, at + length, here + scores_[token], token);
        single = single || length == next - at;
      });
      if (!single) {
        if (!unknown_.has_value()) {
          return absl::InvalidArgumentError(
              "the text has a character without a token, and the model has no unk_id");
        }
        offer(at, next, here + unknown_score_, *unknown_);
      }
      at = next;
    }
    // in reverse order; adjacent unknown pieces are fused
    std::vector<std::pair<size_t, size_t>> pieces;
    bool fuse = false;
    for (size_t end = word.size(); end > 0; end = best[end].begin) {
      const bool unknown = best[end].token == unknown_;
      if (unknown && fuse) {
        pieces.back().first = best[end].begin;
      } else {
        pieces.emplace_back(best[end].begin, end);
      }
      fuse = unknown;
    }
    for (auto piece = pieces.rbegin(); piece != pieces.rend(); ++piece) {
      Put(word.substr(piece->first, piece->second - piece->first), tokens);
    }
    return absl::OkStatus();
  }

 private:
  // Pieces outside the vocabulary stem from the unknown token, so that one exists.
  void Put(absl::string_view piece, std::vector<int>* tokens) const {
    const int id = vocabulary_.Find(piece);
    if (id >= 0) {
      tokens->push_back(id);
      return;
    }
    const bool bytes = byte_fallback_ && std::all_of(piece.begin(), piece.end(), [this](char c) {
                         return bytes_[static_cast<unsigned char>(c)] >= 0;
                       });
    if (!bytes) {
      tokens->push_back(*unknown_);
      return;
    }
    for (const char c : piece) tokens->push_back(bytes_[static_cast<unsigned char>(c)]);
  }

  std::vector<double> scores_;
  std::optional<int> unknown_;
  bool byte_fallback_;
  double unknown_score_ = 0;
  ByteTrie trie_;
  std::array<int, 256> bytes_;
};

}  // namespace

std::unique_ptr<TokenModel> MakeUnigram(const JsonReader& json) {
  const JsonReader list = json.Get("vocab");
  const size_t n = list.size();
  if (n >= static_cast<size_t>(kMaxTokenId)) list.Invalid("has too many tokens");
  std::vector<std::pair<std::string, double>> tokens;
  tokens.reserve(n);
  for (size_t i = 0; i < n && json.ok(); ++i) {
    const JsonReader entry = list.At(i);
    if (entry.size() != 2) {
      entry.Invalid("expected [\"token\", score]");
      break;
    }
    tokens.emplace_back(entry.At(0).AsString(), entry.At(1).AsNumber());
  }
  std::optional<int> unknown;
  if (json.Has("unk_id")) {
    unknown = static_cast<int>(json.Int("unk_id", 0, static_cast<int64_t>(n) - 1));
  }
  const bool byte_fallback = json.Bool("byte_fallback", false);
  if (!json.ok()) return nullptr;
  return std::make_unique<Unigram>(std::move(tokens), unknown, byte_fallback);
}

}  // namespace espalier
