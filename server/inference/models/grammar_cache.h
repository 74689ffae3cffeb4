// Compiled structured outputs of one model. Clients send the same schema with every request, and
// masks that were found for one request serve the next.
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

// Thread-safe; what it hands out is for the model's engine alone.
class GrammarCache {
 public:
  explicit GrammarCache(std::shared_ptr<const Tokenizer> tokenizer)
      : tokenizer_(std::move(tokenizer)) {}

  // `shown`: special tokens whose text is part of the answers, in rising order; of few different
  // kinds. InvalidArgument naming the place that cannot be followed.
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
  // By what is shown; made for the first request.
  std::map<std::vector<int>, std::shared_ptr<const TokenTrie>> tries_ ABSL_GUARDED_BY(mutex_);
  std::map<Key, Entry> entries_ ABSL_GUARDED_BY(mutex_);
  std::list<const Key*> by_use_ ABSL_GUARDED_BY(mutex_);  // the latest first
};

}  // namespace espalier
