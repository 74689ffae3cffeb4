#include "server/inference/models/grammar_cache.h"

#include <utility>

namespace espalier {
namespace {

constexpr size_t kMaxGrammars = 32;

}  // namespace

absl::StatusOr<std::shared_ptr<TokenMasker>> GrammarCache::Get(const StructuredOutput& output,
                                                               const std::vector<int>& shown) {
  Key key(output, shown);
  std::shared_ptr<const TokenTrie> trie;
  {
    absl::MutexLock lock(&mutex_);
    std::shared_ptr<const TokenTrie>& known = tries_[shown];
    if (known == nullptr) known = std::make_shared<TokenTrie>(*tokenizer_, shown);
    trie = known;
    const auto it = entries_.find(key);
    if (it != entries_.end()) {
      by_use_.splice(by_use_.begin(), by_use_, it->second.place);
      return it->second.masker;
    }
  }
  // Compiles without the lock: a large schema takes a while.
  absl::StatusOr<Grammar> grammar = GrammarOf(output);
  if (!grammar.ok()) return grammar.status();
  absl::StatusOr<std::shared_ptr<const Automaton>> automaton = BuildAutomaton(*grammar);
  if (!automaton.ok()) return automaton.status();
  absl::StatusOr<std::shared_ptr<TokenMasker>> masker =
      TokenMasker::Create(*std::move(automaton), std::move(trie), tokenizer_->eos());
  if (!masker.ok()) return masker.status();
  absl::MutexLock lock(&mutex_);
  const auto [it, added] = entries_.try_emplace(std::move(key));
  if (!added) return it->second.masker;  // lost a race
  by_use_.push_front(&it->first);
  it->second = {*masker, by_use_.begin()};
  if (entries_.size() > kMaxGrammars) {
    const Key* oldest = by_use_.back();
    by_use_.pop_back();
    entries_.erase(entries_.find(*oldest));
  }
  return *masker;
}

}  // namespace espalier
