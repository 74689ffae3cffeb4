#include "serving/grammar/token_masker.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "serving/grammar/parse_table.h"

namespace espalier {
namespace {

constexpr int64_t kMaxPeriodBytes = 48 << 20;
// Of one mask, some tens of milliseconds: all requests of the model wait for it.
constexpr int64_t kMaxWork = 1'000'000;
// Of a mask on average, about a millisecond.
constexpr double kCostly = 30'000;
constexpr double kOfLate = 16;  // masks

}  // namespace

struct TokenMasker::Period {
  explicit Period(std::shared_ptr<const Automaton> automaton) : table(std::move(automaton)) {}

  ParseTable table;
  absl::flat_hash_map<int, TokenSetRef> masks;
  int64_t mask_bytes = 0;
};

struct TokenMasker::At : public TokenConstraint::Place {
  At(std::shared_ptr<Period> in, int number) : period(std::move(in)), state(number) {}

  std::shared_ptr<Period> period;
  int state;
};

absl::StatusOr<std::shared_ptr<TokenMasker>> TokenMasker::Create(
    std::shared_ptr<const Automaton> automaton, std::shared_ptr<const TokenTrie> trie,
    std::vector<int> eos) {
  std::shared_ptr<TokenMasker> masker(
      new TokenMasker(std::move(automaton), std::move(trie), std::move(eos)));
  masker->period_ = std::make_shared<Period>(masker->automaton_);
  absl::StatusOr<int> start = masker->period_->table.Start();
  if (!start.ok()) return start.status();
  if (*start == ParseTable::kDead) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the grammar nests deeper than ", ParseTable::kMaxDepth, " before its first byte"));
  }
  masker->start_ = std::make_shared<At>(masker->period_, *start);
  return masker;
}

absl::StatusOr<std::shared_ptr<const TokenMasker::At>> TokenMasker::Renew(const PlaceRef& place) {
  auto at = std::static_pointer_cast<const At>(place);
  if (period_->table.bytes() + period_->mask_bytes > kMaxPeriodBytes) {
    period_ = std::make_shared<Period>(automaton_);
  }
  if (at->period == period_) return at;
  absl::StatusOr<int> state = period_->table.Import(at->period->table, at->state);
  if (!state.ok()) return state.status();
  return std::make_shared<const At>(period_, *state);
}

absl::StatusOr<TokenConstraint::PlaceRef> TokenMasker::After(const PlaceRef& place, int token) {
  absl::StatusOr<std::shared_ptr<const At>> at = Renew(place);
  if (!at.ok()) return at.status();
  const bool known = token >= 0 && token < trie_->vocabulary();
  int state = known && !trie_->bytes(token).empty() ? (*at)->state : ParseTable::kDead;
  for (size_t i = 0; state != ParseTable::kDead && i < trie_->bytes(token).size(); ++i) {
    absl::StatusOr<int> next =
        period_->table.Next(state, static_cast<uint8_t>(trie_->bytes(token)[i]));
    if (!next.ok()) return next.status();
    state = *next;
  }
  if (state == ParseTable::kDead) {
    return absl::InvalidArgumentError(
        absl::StrCat("token ", token, " does not fit the structured output"));
  }
  return std::make_shared<const At>(period_, state);
}

absl::StatusOr<TokenSet> TokenMasker::Walk(Period& period, int state) const {
  TokenSet set;
  const int64_t limit = period.table.work() + kMaxWork;
  struct Open {
    int32_t end;
    int state;
  };
  const std::vector<TokenTrie::Node>& nodes = trie_->nodes();
  std::vector<Open> open = {{static_cast<int32_t>(nodes.size()), state}};
  for (int32_t i = 0; i < static_cast<int32_t>(nodes.size());) {
    while (open.back().end <= i) open.pop_back();
    const TokenTrie::Node& node = nodes[i];
    absl::StatusOr<int> next = period.table.Next(open.back().state, node.byte);
    if (!next.ok()) return next.status();
    if (period.table.work() > limit) {
      return absl::InvalidArgumentError(
          "the structured output's grammar takes too long: finding the tokens that may come next "
          "takes more than a million steps; make it less ambiguous");
    }
    if (*next == ParseTable::kDead) {
      i = node.end;
      continue;
    }
    for (int32_t t = node.first_token; t < node.first_token + node.tokens; ++t) {
      Insert(trie_->tokens()[t], &set);
    }
    open.push_back({node.end, *next});
    ++i;
  }
  if (period.table.accepting(state)) {
    for (const int token : eos_) Insert(token, &set);
  }
  return set;
}

absl::StatusOr<TokenSetRef> TokenMasker::Permitted(const PlaceRef& place) {
  absl::StatusOr<std::shared_ptr<const At>> at = Renew(place);
  if (!at.ok()) return at.status();
  TokenSetRef& mask = period_->masks[(*at)->state];
  work_ -= work_ / kOfLate;
  if (mask == nullptr) {
    const int64_t before = period_->table.work();
    absl::StatusOr<TokenSet> set = Walk(*period_, (*at)->state);
    work_ += static_cast<double>(period_->table.work() - before) / kOfLate;
    if (!set.ok()) return set.status();
    period_->mask_bytes += static_cast<int64_t>(set->size() * sizeof(uint64_t));
    mask = std::make_shared<const TokenSet>(*std::move(set));
  }
  if (std::any_of(mask->begin(), mask->end(), [](uint64_t word) { return word != 0; })) return mask;
  return absl::InvalidArgumentError(
      "the structured output cannot go on: no token of the model's vocabulary fits what its "
      "grammar wants next, or it nests too deep");
}

bool TokenMasker::Costly() const { return work_ > kCostly; }

bool TokenMasker::Complete(const PlaceRef& place) const {
  const At& at = static_cast<const At&>(*place);
  return at.period->table.complete(at.state);
}

}  // namespace espalier
