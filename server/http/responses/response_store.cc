#include "server/http/responses/response_store.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

using json = nlohmann::ordered_json;

// Memory of one item in the index, with an ID of kMaxItemIdBytes, and of one response in the maps.
constexpr size_t kIndexBytes = 256;
constexpr size_t kEntryBytes = 512;

// Returns the heap bytes of an allocation: a length field, and rounding to 16 bytes.
size_t AllocatedBytes(size_t bytes) {
  return bytes == 0 ? 0 : std::max<size_t>(32, (bytes + 8 + 15) / 16 * 16);
}

// Heap bytes, without the string object itself.
size_t BytesOf(const std::string& text) {
  constexpr size_t kInlineCapacity = 15;  // small-string optimization
  return text.capacity() <= kInlineCapacity ? 0 : AllocatedBytes(text.capacity() + 1);
}

// Heap bytes, without the value itself. For many small values, many times the size of their text.
size_t BytesOf(const json& value) {
  size_t bytes = 0;
  if (value.is_string()) {
    bytes = AllocatedBytes(sizeof(json::string_t)) + BytesOf(value.get_ref<const std::string&>());
  } else if (value.is_array()) {
    const auto& array = value.get_ref<const json::array_t&>();
    bytes = AllocatedBytes(sizeof(array)) + AllocatedBytes(array.capacity() * sizeof(json));
    for (const json& item : array) bytes += BytesOf(item);
  } else if (value.is_object()) {
    const auto& object = value.get_ref<const json::object_t&>();
    bytes = AllocatedBytes(sizeof(object)) +
            AllocatedBytes(object.capacity() * sizeof(json::object_t::value_type));
    for (const auto& [name, field] : object) bytes += BytesOf(name) + BytesOf(field);
  }
  return bytes;
}

size_t BytesOf(const StoredResponse& response) {
  size_t bytes = kEntryBytes + sizeof(response) + 2 * BytesOf(response.owner) +
                 BytesOf(response.object) + BytesOf(response.input) +
                 AllocatedBytes(response.events.capacity() * sizeof(std::string)) +
                 kIndexBytes * (response.input.size() + response.object["output"].size());
  for (const std::string& event : response.events) bytes += BytesOf(event);
  return bytes;
}

// Drops what the answer can spare, then the answer itself: polling clients must still learn how it
// ended.
size_t Shrink(size_t max_bytes, StoredResponse* response) {
  size_t bytes = BytesOf(*response);
  if (bytes > max_bytes) {
    response->events_dropped = !response->events.empty();
    std::vector<std::string>().swap(response->events);
    bytes = BytesOf(*response);
  }
  if (bytes > max_bytes) {
    for (json& item : response->object["output"]) {
      if (!item.contains("content")) continue;
      for (json& part : item["content"]) {
        if (part.contains("logprobs")) part["logprobs"] = json::array();
      }
    }
    bytes = BytesOf(*response);
  }
  if (bytes > max_bytes) {
    response->object["status"] = "failed";
    response->object["error"] = {
        {"code", "server_error"},
        {"message", absl::StrCat("the response would take ", bytes, " bytes, and ", max_bytes,
                                 " are kept at most (espalierd --response-store-bytes)")}};
    response->object["output"] = json::array();
    response->input = json::array();
    response->conversation_dropped = true;
    // Request fields that it repeats may be as large.
    for (const auto& [echo, nothing] : {std::pair<const char*, json>("instructions", nullptr),
                                        {"tools", json::array()},
                                        {"tool_choice", "auto"},
                                        {"text", nullptr},
                                        {"metadata", json::object()},
                                        {"user", nullptr},
                                        {"safety_identifier", nullptr},
                                        {"prompt_cache_key", nullptr}}) {
      if (response->object.contains(echo)) response->object[echo] = nothing;
    }
    bytes = BytesOf(*response);
  }
  return bytes;
}

}  // namespace

ResponseStore::Entry* ResponseStore::FindEntry(const std::string& id, const Caller& caller) {
  const auto it = entries_.find(id);
  return it == entries_.end() || !caller.MayChange(it->second.owner) ? nullptr : &it->second;
}

void ResponseStore::Index(const std::string& id, const StoredResponse& response, bool add) {
  for (const json* items : {&response.input, &response.object["output"]}) {
    for (const json& item : *items) {
      std::pair<std::string, std::string> key(item["id"], id);
      if (add) {
        items_.try_emplace(std::move(key), &item);
      } else {
        items_.erase(key);
      }
    }
  }
}

void ResponseStore::Remove(const std::string& id, Dropped* dropped) {
  const auto it = entries_.find(id);
  if (it->second.ended != nullptr) {
    Index(id, *it->second.ended, /*add=*/false);
    order_.erase(it->second.used);
    dropped->push_back(std::move(it->second.ended));
  }
  bytes_ -= it->second.bytes;
  entries_.erase(it);
}

void ResponseStore::Start(const std::string& id, std::string owner,
                          std::shared_ptr<InProgressResponse> running) {
  absl::MutexLock lock(&mutex_);
  entries_[id] = {.owner = std::move(owner), .running = std::move(running)};
}

void ResponseStore::Keep(const std::string& id, StoredResponse response, size_t bytes,
                         Dropped* dropped) {
  if (bytes > max_bytes_) return;
  while (bytes_ + bytes > max_bytes_) Remove(order_.front(), dropped);
  order_.push_back(id);
  bytes_ += bytes;
  auto ended = std::make_shared<StoredResponse>(std::move(response));
  Index(id, *ended, /*add=*/true);
  entries_[id] = {
      .owner = ended->owner, .ended = ended, .bytes = bytes, .used = std::prev(order_.end())};
}

void ResponseStore::Put(const std::string& id, StoredResponse response) {
  const size_t bytes = BytesOf(response);
  Dropped dropped;
  absl::MutexLock lock(&mutex_);
  Keep(id, std::move(response), bytes, &dropped);
}

void ResponseStore::End(const std::string& id, StoredResponse response) {
  const size_t bytes = Shrink(max_bytes_, &response);
  std::shared_ptr<InProgressResponse> ended;  // destroyed after the lock is released
  Dropped dropped;
  absl::MutexLock lock(&mutex_);
  const auto it = entries_.find(id);
  if (it == entries_.end() || it->second.running == nullptr) return;
  ended = std::move(it->second.running);
  entries_.erase(it);
  Keep(id, std::move(response), bytes, &dropped);
}

ResponseStore::Found ResponseStore::Find(const std::string& id, const Caller& caller) {
  absl::MutexLock lock(&mutex_);
  Entry* entry = FindEntry(id, caller);
  if (entry == nullptr) return {};
  if (entry->ended != nullptr) order_.splice(order_.end(), order_, entry->used);
  return {entry->running, entry->ended};
}

bool ResponseStore::Erase(const std::string& id, const Caller& caller) {
  Dropped dropped;
  absl::MutexLock lock(&mutex_);
  if (FindEntry(id, caller) == nullptr) return false;
  Remove(id, &dropped);
  return true;
}

std::shared_ptr<const json> ResponseStore::Item(const std::string& item, const Caller& caller) {
  absl::MutexLock lock(&mutex_);
  for (auto it = items_.lower_bound({item, ""}); it != items_.end() && it->first.first == item;
       ++it) {
    const Entry& entry = entries_.at(it->first.second);
    // aliases the response that owns it
    if (caller.MayChange(entry.owner)) return {entry.ended, it->second};
  }
  return nullptr;
}

}  // namespace espalier
