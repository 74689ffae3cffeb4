// Responses that can be fetched, gone on from and deleted, in memory: the ones used last, as many
// as fit. They end with the process.
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
#include "server/http/in_progress_response.h"

namespace espalier {

struct StoredResponse {
  std::string owner;                // who made it and alone finds it: its Authorization
  nlohmann::ordered_json object;    // as it is returned
  nlohmann::ordered_json input;     // items of the whole conversation before its output
  std::vector<std::string> events;  // of one that can be streamed again
  // What was too large to be kept: the events; the conversation, the answer with it.
  bool events_dropped = false, conversation_dropped = false;
};

// Thread-safe.
class ResponseStore {
 public:
  // Of memory, nearly; what runs is not counted, nor ever dropped. 0: nothing is kept.
  explicit ResponseStore(size_t max_bytes) : max_bytes_(max_bytes) {}

  bool keeps() const { return max_bytes_ > 0; }

  void Start(const std::string& id, std::string owner, std::shared_ptr<InProgressResponse> running);
  void Put(const std::string& id, StoredResponse response);
  // What ran under this id has ended; nothing happens if it was erased since. Too large to be kept
  // it loses its events, then its log-probabilities, and at last is kept as failed, with the
  // reason and without its conversation: nobody can go on from it.
  void End(const std::string& id, StoredResponse response);

  struct Found {
    std::shared_ptr<InProgressResponse> running;          // or
    std::shared_ptr<const StoredResponse> ended;  // or neither
  };
  Found Find(const std::string& id, const std::string& owner);
  // Whether there was one.
  bool Erase(const std::string& id, const std::string& owner);

  // An item of an input or output that is kept; null: there is none.
  std::shared_ptr<const nlohmann::ordered_json> Item(const std::string& item,
                                                     const std::string& owner);

 private:
  struct Entry {
    std::string owner;
    std::shared_ptr<InProgressResponse> running;
    std::shared_ptr<const StoredResponse> ended;
    size_t bytes = 0;
    std::list<std::string>::iterator used;  // if it has ended
  };

  Entry* FindEntry(const std::string& id, const std::string& owner)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What is let go of takes long to destroy where it is large: its owner does so without the lock.
  using Dropped = std::vector<std::shared_ptr<const StoredResponse>>;

  void Keep(const std::string& id, StoredResponse response, size_t bytes, Dropped* dropped)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Adds or takes away what item ids stand for.
  void Index(const std::string& id, const StoredResponse& response, bool add)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Remove(const std::string& id, Dropped* dropped) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const size_t max_bytes_;
  absl::Mutex mutex_;
  std::map<std::string, Entry> entries_ ABSL_GUARDED_BY(mutex_);
  std::list<std::string> order_ ABSL_GUARDED_BY(mutex_);  // of use, the oldest first
  // Item ids with the responses that have them; those of a conversation are in many.
  std::map<std::pair<std::string, std::string>, const nlohmann::ordered_json*> items_
      ABSL_GUARDED_BY(mutex_);
  size_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace espalier
