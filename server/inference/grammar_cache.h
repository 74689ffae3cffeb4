// Compiled structured outputs of one model. Clients send the same schema with every request, and
// masks that were found for one request serve the next.
#pragma once

#include <list>
#include <map>
#include <memory>

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

  // InvalidArgument naming the place that cannot be followed.
  absl::StatusOr<std::shared_ptr<TokenMasker>> Get(const StructuredOutput& output);

 private:
  struct Entry {
    std::shared_ptr<TokenMasker> masker;
    std::list<const StructuredOutput*>::iterator place;
  };

  const std::shared_ptr<const Tokenizer> tokenizer_;
  absl::Mutex mutex_;
  std::shared_ptr<const TokenTrie> trie_ ABSL_GUARDED_BY(mutex_);  // made for the first request
  std::map<StructuredOutput, Entry> entries_ ABSL_GUARDED_BY(mutex_);
  std::list<const StructuredOutput*> by_use_ ABSL_GUARDED_BY(mutex_);  // the latest first
};

}  // namespace espalier
