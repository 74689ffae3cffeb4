#include "serving/grammar/token_masker.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "serving/grammar/lazy_automaton.h"

namespace espalier {
namespace {

constexpr int64_t kMaxEpochBytes = 48 << 20;
// Work for one mask or token. Some tens of milliseconds, during which all requests of the model
// wait; a third of an epoch's memory at most.
constexpr int64_t kMaxWork = 100'000;
// Average work per mask from which masks are costly; about a millisecond.
constexpr double kCostly = 6'000;
constexpr double kAverageWindow = 16;  // masks in the moving average
// Trie nodes visited in the time of one unit of LazyAutomaton::work.
constexpr int64_t kNodesPerStep = 16;
// Limit of the ambiguity check when a grammar is created; some tens of milliseconds.
constexpr int64_t kMaxCheck = 500'000;

absl::Status TooLong() {
  return absl::InvalidArgumentError(absl::StrCat(
      "the structured output's grammar takes too long: finding the tokens that may come next takes "
      "more than ",
      kMaxWork, " steps; make it less ambiguous"));
}

void Erase(int token, TokenBitmask* set) {
  const size_t word = static_cast<size_t>(token) / 64;
  if (word < set->size()) (*set)[word] &= ~(uint64_t{1} << token % 64);
}

}  // namespace

struct TokenMasker::CacheEpoch {
  explicit CacheEpoch(std::shared_ptr<const Automaton> automaton) : table(std::move(automaton)) {}

  LazyAutomaton table;
  struct Mask {
    TokenBitmaskRef tokens;
    absl::Status failure;  // cached, too, so that the work is not repeated
  };
  absl::flat_hash_map<int, Mask> masks;  // by state
  // The mask with the largest max_bytes of each equivalence class.
  struct Base {
    TokenBitmaskRef mask;
    int32_t left = 0;
  };
  absl::flat_hash_map<std::pair<int, bool>, Base> bases;  // by class id and acceptance
  int64_t mask_bytes = 0;
};

struct TokenMasker::Position : public TokenConstraint::State {
  Position(std::shared_ptr<CacheEpoch> in, int number, bool ends, bool whole)
      : epoch(std::move(in)), state(number), accepting(ends), complete(whole) {}

  static std::shared_ptr<const Position> Of(const std::shared_ptr<CacheEpoch>& epoch, int state) {
    return std::make_shared<const Position>(epoch, state, epoch->table.accepting(state),
                                            epoch->table.complete(state));
  }

  std::shared_ptr<CacheEpoch> epoch;  // null: the start, in any epoch
  int state;
  bool accepting, complete;
};

absl::StatusOr<std::shared_ptr<TokenMasker>> TokenMasker::Create(
    std::shared_ptr<const Automaton> automaton, std::shared_ptr<const TokenTrie> trie,
    std::vector<int> eos) {
  std::shared_ptr<TokenMasker> masker(
      new TokenMasker(std::move(automaton), std::move(trie), std::move(eos)));
  if (absl::Status status = LazyAutomaton::CheckAmbiguity(masker->automaton_, kMaxCheck);
      !status.ok()) {
    return status;
  }
  masker->epoch_ = std::make_shared<CacheEpoch>(masker->automaton_);
  absl::StatusOr<int> start = masker->epoch_->table.Start();
  if (!start.ok()) return start.status();
  if (*start == LazyAutomaton::kDead) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the grammar nests deeper than ", LazyAutomaton::kMaxDepth, " before its first byte"));
  }
  // start_ does not keep the first epoch alive.
  const LazyAutomaton& table = masker->epoch_->table;
  masker->start_ =
      std::make_shared<Position>(nullptr, 0, table.accepting(*start), table.complete(*start));
  return masker;
}

absl::StatusOr<std::shared_ptr<const TokenMasker::Position>> TokenMasker::ToCurrentEpoch(
    const StateRef& position) {
  auto at = std::static_pointer_cast<const Position>(position);
  if (epoch_->table.bytes() + epoch_->mask_bytes > kMaxEpochBytes) {
    epoch_ = std::make_shared<CacheEpoch>(automaton_);
  }
  if (at->epoch == epoch_) return at;
  absl::StatusOr<int> state = at->epoch == nullptr
                                  ? epoch_->table.Start()
                                  : epoch_->table.Import(at->epoch->table, at->state);
  if (!state.ok()) return state.status();
  return Position::Of(epoch_, *state);
}

absl::StatusOr<TokenConstraint::StateRef> TokenMasker::After(const StateRef& position, int token) {
  absl::StatusOr<std::shared_ptr<const Position>> at = ToCurrentEpoch(position);
  if (!at.ok()) return at.status();
  const bool known = token >= 0 && token < trie_->vocabulary();
  int state = known && !trie_->bytes(token).empty() ? (*at)->state : LazyAutomaton::kDead;
  const int64_t limit = epoch_->table.work() + kMaxWork;
  for (size_t i = 0; state != LazyAutomaton::kDead && i < trie_->bytes(token).size(); ++i) {
    absl::StatusOr<int> next =
        epoch_->table.Next(state, static_cast<uint8_t>(trie_->bytes(token)[i]));
    if (!next.ok()) return next.status();
    if (epoch_->table.work() > limit) return TooLong();
    state = *next;
  }
  if (state == LazyAutomaton::kDead) {
    return absl::InvalidArgumentError(
        absl::StrCat("token ", token, " does not fit the structured output"));
  }
  return Position::Of(epoch_, state);
}

absl::StatusOr<TokenBitmask> TokenMasker::WalkTrie(CacheEpoch& epoch, int state,
                                                   const TokenBitmask* base, int agreed) {
  TokenBitmask set = base != nullptr ? *base : TokenBitmask();
  LazyAutomaton& table = epoch.table;
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
    if (base != nullptr && node.max_token_bytes <= agreed) {
      i = node.end;
      continue;
    }
    int next = table.CachedNext(open.back().state, node.byte);
    if (next == LazyAutomaton::kUnknown) {
      const absl::StatusOr<int> found = table.Next(open.back().state, node.byte);
      if (!found.ok()) return found.status();
      next = *found;
      if (table.work() > limit) return TooLong();
    }
    const bool dead = next == LazyAutomaton::kDead;
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
  work_ += static_cast<double>(visited / kNodesPerStep) / kAverageWindow;
  return set;
}

absl::StatusOr<TokenBitmaskRef> TokenMasker::ComputeMask(CacheEpoch& epoch, int state) {
  const LazyAutomaton::EquivalenceClass equivalence = epoch.table.EquivalenceClassOf(state);
  CacheEpoch::Base& base = epoch.bases[{equivalence.id, epoch.table.accepting(state)}];
  const int agreed = std::min(equivalence.max_bytes, base.left);
  if (base.mask != nullptr && agreed >= trie_->max_token_bytes()) return base.mask;
  const int64_t before = epoch.table.work();
  absl::StatusOr<TokenBitmask> set = WalkTrie(epoch, state, base.mask.get(), agreed);
  work_ += static_cast<double>(epoch.table.work() - before) / kAverageWindow;
  if (!set.ok()) return set.status();
  if (std::all_of(set->begin(), set->end(), [](uint64_t word) { return word == 0; })) {
    return absl::InvalidArgumentError(
        "the structured output cannot continue: no token of the model's vocabulary fits its "
        "grammar here, or it nests too deep");
  }
  epoch.mask_bytes += static_cast<int64_t>(set->size() * sizeof(uint64_t));
  auto mask = std::make_shared<const TokenBitmask>(*std::move(set));
  if (base.mask == nullptr || equivalence.max_bytes > base.left)
    base = {mask, equivalence.max_bytes};
  return mask;
}

absl::StatusOr<TokenBitmaskRef> TokenMasker::AllowedTokens(const StateRef& position) {
  const absl::StatusOr<std::shared_ptr<const Position>> at = ToCurrentEpoch(position);
  if (!at.ok()) return at.status();
  work_ -= work_ / kAverageWindow;
  const auto [entry, missing] = epoch_->masks.try_emplace((*at)->state);
  CacheEpoch::Mask& mask = entry->second;
  if (missing) {
    absl::StatusOr<TokenBitmaskRef> found = ComputeMask(*epoch_, (*at)->state);
    mask.failure = found.status();
    if (found.ok()) mask.tokens = *std::move(found);
  }
  if (!mask.failure.ok()) return mask.failure;
  return mask.tokens;
}

bool TokenMasker::MayEnd(const StateRef& position) const {
  return static_cast<const Position&>(*position).accepting;
}

bool TokenMasker::Costly() const { return work_ > kCostly; }

bool TokenMasker::Complete(const StateRef& position) const {
  return static_cast<const Position&>(*position).complete;
}

}  // namespace espalier
