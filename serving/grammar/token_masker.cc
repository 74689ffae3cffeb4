#include "serving/grammar/token_masker.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "serving/grammar/parse_table.h"

namespace espalier {
namespace {

constexpr int64_t kMaxPeriodBytes = 48 << 20;
// Of one mask or token, some tens of milliseconds: all requests of the model wait for it. Of memory
// a third of a period at most.
constexpr int64_t kMaxWork = 100'000;
// Of a mask on average, about a millisecond.
constexpr double kCostly = 6'000;
constexpr double kOfLate = 16;  // masks
// Nodes of the vocabulary's tree that are passed in the time of a step of the table.
constexpr int64_t kNodesPerStep = 16;
// Of the check of a grammar when it comes; some tens of milliseconds.
constexpr int64_t kMaxCheck = 500'000;

absl::Status TooLong() {
  return absl::InvalidArgumentError(absl::StrCat(
      "the structured output's grammar takes too long: finding the tokens that may come next takes "
      "more than ",
      kMaxWork, " steps; make it less ambiguous"));
}

void Erase(int token, TokenSet* set) {
  const size_t word = static_cast<size_t>(token) / 64;
  if (word < set->size()) (*set)[word] &= ~(uint64_t{1} << token % 64);
}

}  // namespace

struct TokenMasker::Period {
  explicit Period(std::shared_ptr<const Automaton> automaton) : table(std::move(automaton)) {}

  ParseTable table;
  struct Mask {
    TokenSetRef tokens;
    absl::Status failure;  // remembered, too, so that nobody pays for it again
  };
  absl::flat_hash_map<int, Mask> masks;  // by state
  // The mask of each outline that holds for the longest texts.
  struct Base {
    TokenSetRef mask;
    int32_t left = 0;
  };
  absl::flat_hash_map<std::pair<int, bool>, Base> bases;  // by outline, and whether it accepts
  int64_t mask_bytes = 0;
};

struct TokenMasker::At : public TokenConstraint::Place {
  At(std::shared_ptr<Period> in, int number, bool ends, bool whole)
      : period(std::move(in)), state(number), accepting(ends), complete(whole) {}

  static std::shared_ptr<const At> Of(const std::shared_ptr<Period>& period, int state) {
    return std::make_shared<const At>(period, state, period->table.accepting(state),
                                      period->table.complete(state));
  }

  std::shared_ptr<Period> period;  // null: the start, of any period
  int state;
  bool accepting, complete;
};

absl::StatusOr<std::shared_ptr<TokenMasker>> TokenMasker::Create(
    std::shared_ptr<const Automaton> automaton, std::shared_ptr<const TokenTrie> trie,
    std::vector<int> eos) {
  std::shared_ptr<TokenMasker> masker(
      new TokenMasker(std::move(automaton), std::move(trie), std::move(eos)));
  if (absl::Status status = ParseTable::CheckWidth(masker->automaton_, kMaxCheck); !status.ok()) {
    return status;
  }
  masker->period_ = std::make_shared<Period>(masker->automaton_);
  absl::StatusOr<int> start = masker->period_->table.Start();
  if (!start.ok()) return start.status();
  if (*start == ParseTable::kDead) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the grammar nests deeper than ", ParseTable::kMaxDepth, " before its first byte"));
  }
  // The first period is not kept for it.
  const ParseTable& table = masker->period_->table;
  masker->start_ =
      std::make_shared<At>(nullptr, 0, table.accepting(*start), table.complete(*start));
  return masker;
}

absl::StatusOr<std::shared_ptr<const TokenMasker::At>> TokenMasker::Renew(const PlaceRef& place) {
  auto at = std::static_pointer_cast<const At>(place);
  if (period_->table.bytes() + period_->mask_bytes > kMaxPeriodBytes) {
    period_ = std::make_shared<Period>(automaton_);
  }
  if (at->period == period_) return at;
  absl::StatusOr<int> state = at->period == nullptr
                                  ? period_->table.Start()
                                  : period_->table.Import(at->period->table, at->state);
  if (!state.ok()) return state.status();
  return At::Of(period_, *state);
}

absl::StatusOr<TokenConstraint::PlaceRef> TokenMasker::After(const PlaceRef& place, int token) {
  absl::StatusOr<std::shared_ptr<const At>> at = Renew(place);
  if (!at.ok()) return at.status();
  const bool known = token >= 0 && token < trie_->vocabulary();
  int state = known && !trie_->bytes(token).empty() ? (*at)->state : ParseTable::kDead;
  const int64_t limit = period_->table.work() + kMaxWork;
  for (size_t i = 0; state != ParseTable::kDead && i < trie_->bytes(token).size(); ++i) {
    absl::StatusOr<int> next =
        period_->table.Next(state, static_cast<uint8_t>(trie_->bytes(token)[i]));
    if (!next.ok()) return next.status();
    if (period_->table.work() > limit) return TooLong();
    state = *next;
  }
  if (state == ParseTable::kDead) {
    return absl::InvalidArgumentError(
        absl::StrCat("token ", token, " does not fit the structured output"));
  }
  return At::Of(period_, state);
}

absl::StatusOr<TokenSet> TokenMasker::Walk(Period& period, int state, const TokenSet* base,
                                           int agreed) {
  TokenSet set = base != nullptr ? *base : TokenSet();
  ParseTable& table = period.table;
  const int64_t limit = table.work() + kMaxWork;
  struct Open {
    int32_t end;
    int state;
  };
  const std::vector<TokenTrie::Node>& nodes = trie_->nodes();
  std::vector<Open> open = {{static_cast<int32_t>(nodes.size()), state}};
  int64_t visited = 0;
  for (int32_t i = 0; i < static_cast<int32_t>(nodes.size()); ++visited) {
    while (open.back().end <= i) open.pop_back();
    const TokenTrie::Node& node = nodes[i];
    if (base != nullptr && node.deepest <= agreed) {
      i = node.end;
      continue;
    }
    int next = table.Known(open.back().state, node.byte);
    if (next == ParseTable::kUnknown) {
      const absl::StatusOr<int> found = table.Next(open.back().state, node.byte);
      if (!found.ok()) return found.status();
      next = *found;
      if (table.work() > limit) return TooLong();
    }
    const bool dead = next == ParseTable::kDead;
    const int32_t last = dead ? trie_->TokensEnd(node) : node.first_token + node.tokens;
    for (int32_t t = node.first_token; t < last && (!dead || base != nullptr); ++t) {
      dead ? Erase(trie_->tokens()[t], &set) : Insert(trie_->tokens()[t], &set);
    }
    if (!dead) open.push_back({node.end, next});
    i = dead ? node.end : i + 1;
  }
  if (table.accepting(state)) {
    for (const int token : eos_) Insert(token, &set);
  }
  work_ += static_cast<double>(visited / kNodesPerStep) / kOfLate;
  return set;
}

absl::StatusOr<TokenSetRef> TokenMasker::Find(Period& period, int state) {
  const ParseTable::Outline outline = period.table.OutlineOf(state);
  Period::Base& base = period.bases[{outline.number, period.table.accepting(state)}];
  const int agreed = std::min(outline.left, base.left);
  if (base.mask != nullptr && agreed >= trie_->deepest()) return base.mask;
  const int64_t before = period.table.work();
  absl::StatusOr<TokenSet> set = Walk(period, state, base.mask.get(), agreed);
  work_ += static_cast<double>(period.table.work() - before) / kOfLate;
  if (!set.ok()) return set.status();
  if (std::all_of(set->begin(), set->end(), [](uint64_t word) { return word == 0; })) {
    return absl::InvalidArgumentError(
        "the structured output cannot go on: no token of the model's vocabulary fits what its "
        "grammar wants next, or it nests too deep");
  }
  period.mask_bytes += static_cast<int64_t>(set->size() * sizeof(uint64_t));
  auto mask = std::make_shared<const TokenSet>(*std::move(set));
  if (base.mask == nullptr || outline.left > base.left) base = {mask, outline.left};
  return mask;
}

absl::StatusOr<TokenSetRef> TokenMasker::Permitted(const PlaceRef& place) {
  const absl::StatusOr<std::shared_ptr<const At>> at = Renew(place);
  if (!at.ok()) return at.status();
  work_ -= work_ / kOfLate;
  const auto [entry, missing] = period_->masks.try_emplace((*at)->state);
  Period::Mask& mask = entry->second;
  if (missing) {
    absl::StatusOr<TokenSetRef> found = Find(*period_, (*at)->state);
    mask.failure = found.status();
    if (found.ok()) mask.tokens = *std::move(found);
  }
  if (!mask.failure.ok()) return mask.failure;
  return mask.tokens;
}

bool TokenMasker::MayEnd(const PlaceRef& place) const {
  return static_cast<const At&>(*place).accepting;
}

bool TokenMasker::Costly() const { return work_ > kCostly; }

bool TokenMasker::Complete(const PlaceRef& place) const {
  return static_cast<const At&>(*place).complete;
}

}  // namespace espalier
