#include "serving/speculative/context_index.h"

#include <algorithm>

namespace espalier {
namespace {

constexpr int kLengths[] = {8, 5, 3, 2};  // longest first
constexpr int kLongest = 32;              // how far back a match is followed

// Of the `length` tokens before `end`; false in *whole if there are not so many, or a text ends
// among them.
uint64_t Hash(absl::Span<const int> tokens, int end, int length, bool* whole) {
  *whole = end >= length;
  uint64_t hash = 0x9E3779B97F4A7C15ull * static_cast<uint64_t>(length);
  for (int i = end - length; *whole && i < end; ++i) {
    *whole = tokens[i] != ContextIndex::kEnd;
    hash = (hash ^ static_cast<uint64_t>(tokens[i])) * 0xBF58476D1CE4E5B9ull;
    hash ^= hash >> 29;
  }
  return hash;
}

}  // namespace

void ContextIndex::Append(int token) {
  if (token != kEnd) {
    // Runs are entered when it is known what follows them.
    for (const int length : kLengths) {
      bool whole;
      const uint64_t hash = Hash(tokens_, size(), length, &whole);
      if (!whole) continue;
      Places& places = places_[hash];
      places[1] = places[0];
      places[0] = size();
    }
  }
  tokens_.push_back(token);
}

std::vector<ContextIndex::Match> ContextIndex::Find(absl::Span<const int> text, int count) const {
  std::vector<Match> out;
  const int end = static_cast<int>(text.size());
  for (const int length : kLengths) {
    bool whole;
    const uint64_t hash = Hash(text, end, length, &whole);
    if (!whole) continue;
    const auto found = places_.find(hash);
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
      if (agree >= length) out.push_back({next, agree});
    }
  }
  std::stable_sort(out.begin(), out.end(),
                   [](const Match& a, const Match& b) { return a.length > b.length; });
  return out;
}

}  // namespace espalier
