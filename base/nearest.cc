#include "base/nearest.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

constexpr size_t kLongestWord = 100;  // the words come from outside

int EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<int> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    int diagonal = row[0];
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const int above = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row[b.size()];
}

}  // namespace

std::string Nearest(absl::string_view given, const std::vector<std::string>& known) {
  if (given.size() > kLongestWord) return "";
  std::string best;
  int best_distance =
      static_cast<int>(given.size()) / 3 + 2;  // maximum edit distance of a suggestion
  for (const std::string& word : known) {
    if (given.size() >= 3 && absl::StartsWith(word, given)) return word;
    const int distance = EditDistance(given, word);
    if (distance < best_distance && distance < static_cast<int>(word.size())) {
      best = word;
      best_distance = distance;
    }
  }
  return best;
}

std::string DidYouMean(absl::string_view given, const std::vector<std::string>& known) {
  const std::string near = Nearest(given, known);
  return near.empty() ? "" : absl::StrCat("; did you mean '", near, "'?");
}

}  // namespace espalier
