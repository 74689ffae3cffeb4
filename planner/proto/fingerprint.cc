// GraphFingerprint: see planner.h.
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "planner/planner.h"

namespace espalier {
namespace {

// Two 64-bit FNV-1a hashes with different starts: identity, not security.
class Hash {
 public:
  void Add(const void* data, size_t size) {
    const unsigned char* bytes = static_cast<const unsigned char*>(data);
    for (size_t i = 0; i < size; ++i) {
      low_ = (low_ ^ bytes[i]) * 0x100000001b3u;
      high_ = (high_ ^ bytes[i]) * 0x100000001b3u + (high_ >> 29);
    }
  }
  void Add(int64_t value) { Add(&value, sizeof(value)); }
  void Add(double value) { Add(&value, sizeof(value)); }
  void Add(bool value) { Add(static_cast<int64_t>(value)); }
  void Add(const std::string& text) {
    Add(static_cast<int64_t>(text.size()));
    Add(text.data(), text.size());
  }
  template <typename T>
  void Add(const std::vector<T>& list) {
    Add(static_cast<int64_t>(list.size()));
    for (const T& item : list) Add(item);
  }
  std::string Text() const { return absl::StrFormat("%016x%016x", high_, low_); }

 private:
  uint64_t low_ = 0xcbf29ce484222325u;
  uint64_t high_ = 0x9ae16a3b2f90404fu;
};

}  // namespace

// Leaves out weights of examples, which a graph that is only planned does not have, so that a plan
// is for the graph with and without them.
std::string GraphFingerprint(const Graph& graph) {
  Hash hash;
  std::vector<int64_t> ids;  // without weights, by value
  int64_t next = 0;
  for (const Value& value : graph.values()) {
    ids.push_back(value.example_weights ? kNoValue : next++);
    if (value.example_weights) continue;
    hash.Add(value.name);
    hash.Add(static_cast<int64_t>(value.kind));
    hash.Add(static_cast<int64_t>(value.type.dtype));
    hash.Add(value.type.dims);
    hash.Add(value.trainable);
  }
  for (const Node& node : graph.nodes()) {
    hash.Add(node.name);
    hash.Add(node.op);
    for (const auto& [name, value] : node.attributes.values()) {
      hash.Add(name);
      hash.Add(static_cast<int64_t>(value.index()));
      std::visit([&](const auto& v) { hash.Add(v); }, value);
    }
    const auto id = [&](ValueId v) { return v == kNoValue ? int64_t{kNoValue} : ids[v]; };
    size_t inputs = node.inputs.size();
    while (inputs > 0 && id(node.inputs[inputs - 1]) == kNoValue) --inputs;
    for (size_t i = 0; i < inputs; ++i) hash.Add(id(node.inputs[i]));
    hash.Add(int64_t{-2});
    for (ValueId v : node.outputs) hash.Add(id(v));
    hash.Add(int64_t{-2});
  }
  for (const auto& [name, value] : graph.outputs) {
    hash.Add(name);
    hash.Add(ids[value]);
  }
  return hash.Text();
}

}  // namespace espalier
