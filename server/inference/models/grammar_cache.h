// LRU cache of one model's compiled grammars. Clients tend to send the same schema with every
// request, and token masks computed for one request serve the next.
#pragma once

#include <list>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "serving/grammar/structured_output.h"
#include "serving/grammar/token_masker.h"

namespace espalier {

// Thread-safe. The maskers it returns are for the model's engine only.
class GrammarCache {
 public:
  explicit GrammarCache(std::shared_ptr<const Tokenizer> tokenizer)
      : tokenizer_(std::move(tokenizer)) {}

  // `shown`: special tokens whose text is part of the answers, ascending; few distinct values are
  // expected. Returns InvalidArgument naming the unsupported place in the grammar.
  absl::StatusOr<std::shared_ptr<TokenMasker>> Get(const StructuredOutput& output,
                                                   const std::vector<int>& shown = {});

 private:
  using Key = std::pair<StructuredOutput, std::vector<int>>;
  struct Entry {
    std::shared_ptr<TokenMasker> masker;
    std::list<const Key*>::iterator place;
  };

  const std::shared_ptr<const Tokenizer> tokenizer_;
  absl::Mutex mutex_;
  // By `shown`; built on first use.
  std::map<std::vector<int>, std::shared_ptr<const TokenTrie>> tries_ ABSL_GUARDED_BY(mutex_);
  std::map<Key, Entry> entries_ ABSL_GUARDED_BY(mutex_);
  std::list<const Key*> by_use_ ABSL_GUARDED_BY(mutex_);  // most recent first
};

}  // namespace espalier
