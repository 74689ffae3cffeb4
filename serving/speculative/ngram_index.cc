#include "serving/speculative/ngram_index.h"

#include <algorithm>

namespace espalier {
namespace {

constexpr int kLongest = 32;  // tokens compared per match, at most

uint64_t Hash(absl::Span<const int> run) {
  uint64_t hash = 0x9E3779B97F4A7C15ull * run.size();
  for (const int token : run) {
    hash = (hash ^ static_cast<uint64_t>(token)) * 0xBF58476D1CE4E5B9ull;
    hash ^= hash >> 29;
  }
  return hash;
}

}  // namespace

NgramIndex::Runs::Runs(absl::Span<const int> text) : text_(text) {
  for (size_t i = 0; i < kLengths.size(); ++i) {
    const auto length = static_cast<size_t>(kLengths[i]);
    whole_[i] = text.size() >= length;
    if (!whole_[i]) continue;
    const absl::Span<const int> run = text.last(length);
    whole_[i] = std::find(run.begin(), run.end(), kEnd) == run.end();
    hashes_[i] = Hash(run);
  }
}

void NgramIndex::Append(absl::Span<const int> tokens) {
  for (const int token : tokens) {
    // An n-gram is entered when its next token is known.
    const Runs runs(token != kEnd ? absl::MakeConstSpan(tokens_) : absl::Span<const int>());
    for (size_t i = 0; i < kLengths.size(); ++i) {
      if (!runs.whole_[i]) continue;
      Places& places = places_[runs.hashes_[i]];
      places[1] = places[0];
      places[0] = size();
    }
    tokens_.push_back(token);
  }
}

std::vector<NgramIndex::Match> NgramIndex::Find(const Runs& runs, int count) const {
  std::vector<Match> out;
  const absl::Span<const int> text = runs.text_;
  const int end = static_cast<int>(text.size());
  for (size_t i = 0; i < kLengths.size(); ++i) {
    if (!runs.whole_[i]) continue;
    const auto found = places_.find(runs.hashes_[i]);
    if (found == places_.end()) continue;
    for (const int next : found->second) {
      if (next == 0 || static_cast<int>(out.size()) >= count) continue;
      if (std::any_of(out.begin(), out.end(), [&](const Match& m) { return m.next == next; })) {
        continue;
      }
      int agree = 0;
      while (agree < std::min({kLongest, next, end}) &&
             tokens_[next - 1 - agree] == text[end - 1 - agree] &&
             tokens_[next - 1 - agree] != kEnd) {
        ++agree;
      }
      if (agree >= kLengths[i]) out.push_back({next, agree});
    }
  }
  std::stable_sort(out.begin(), out.end(),
                   [](const Match& a, const Match& b) { return a.length > b.length; });
  return out;
}

}  // namespace espalier
