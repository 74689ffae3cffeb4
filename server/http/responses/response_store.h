// In-memory LRU store of responses, which can be fetched, continued and deleted. Lost when the
// process ends.
#pragma once

#include <cstddef>
#include <list>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/net/caller.h"
#include "server/http/in_progress_response.h"

namespace espalier {

struct StoredResponse {
  std::string owner;                // of its creator; empty: only admins find it
  nlohmann::ordered_json object;    // as returned to the client
  nlohmann::ordered_json input;     // the whole conversation before its output
  std::vector<std::string> events;  // of a background stream
  // What was too large to keep: the events; the conversation with the answer.
  bool events_dropped = false, conversation_dropped = false;
};

// Callers find what they may change: a response is private to its owner, also an admin's.
// Thread-safe.
class ResponseStore {
 public:
  // `max_bytes` of memory, approximately. Running responses are neither counted nor dropped. 0:
  // stores nothing.
  explicit ResponseStore(size_t max_bytes) : max_bytes_(max_bytes) {}

  bool keeps() const { return max_bytes_ > 0; }

  void Start(const std::string& id, std::string owner, std::shared_ptr<InProgressResponse> running);
  void Put(const std::string& id, StoredResponse response);
  // Stores the result of a running response; no effect if it was erased. One that is too large
  // first loses its events, then its logprobs; if that does not suffice, it is stored as failed,
  // with the reason and without its conversation, and cannot be continued.
  void End(const std::string& id, StoredResponse response);

  struct Found {
    std::shared_ptr<InProgressResponse> running;  // or
    std::shared_ptr<const StoredResponse> ended;  // or neither
  };
  Found Find(const std::string& id, const Caller& caller);
  // Returns whether it existed.
  bool Erase(const std::string& id, const Caller& caller);

  // Returns an item of a stored input or output, or null.
  std::shared_ptr<const nlohmann::ordered_json> Item(const std::string& item, const Caller& caller);

 private:
  struct Entry {
    std::string owner;
    std::shared_ptr<InProgressResponse> running;
    std::shared_ptr<const StoredResponse> ended;
    size_t bytes = 0;
    std::list<std::string>::iterator used;  // if it has ended
  };

  Entry* FindEntry(const std::string& id, const Caller& caller)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Large responses take long to destroy: the caller destroys them after releasing the lock.
  using Dropped = std::vector<std::shared_ptr<const StoredResponse>>;

  void Keep(const std::string& id, StoredResponse response, size_t bytes, Dropped* dropped)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Adds or removes the response's items in items_.
  void Index(const std::string& id, const StoredResponse& response, bool add)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Remove(const std::string& id, Dropped* dropped) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const size_t max_bytes_;
  absl::Mutex mutex_;
  std::map<std::string, Entry> entries_ ABSL_GUARDED_BY(mutex_);
  std::list<std::string> order_ ABSL_GUARDED_BY(mutex_);  // LRU order, the oldest first
  // By item ID and response ID; items of a conversation belong to many responses.
  std::map<std::pair<std::string, std::string>, const nlohmann::ordered_json*> items_
      ABSL_GUARDED_BY(mutex_);
  size_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace espalier
