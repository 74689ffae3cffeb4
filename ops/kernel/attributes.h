// Attributes of an operator. Standard library only: the CUDA plug-in includes this file.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace espalier {

using AttributeValue =
    std::variant<int64_t, double, bool, std::string, std::vector<int64_t>, std::vector<double>>;

// An ordered map from attribute name to value. Values are checked and defaults filled in against
// the operator's definition before a kernel sees them, so the getters below return the fallback
// only for attributes that the operator leaves optional without a default.
class Attributes {
 public:
  Attributes() = default;
  Attributes(std::initializer_list<std::pair<const std::string, AttributeValue>> values)
      : values_(values) {}

  bool Has(const std::string& name) const { return values_.count(name) > 0; }
  void Set(const std::string& name, AttributeValue value) { values_[name] = std::move(value); }
  void Erase(const std::string& name) { values_.erase(name); }

  int64_t Int(const std::string& name, int64_t fallback = 0) const { return Get(name, fallback); }
  // An integer value is accepted where a floating-point one is asked for.
  double Float(const std::string& name, double fallback = 0) const {
    auto it = values_.find(name);
    if (it == values_.end()) return fallback;
    if (const auto* i = std::get_if<int64_t>(&it->second)) return static_cast<double>(*i);
    if (const auto* d = std::get_if<double>(&it->second)) return *d;
    return fallback;
  }
  bool Bool(const std::string& name, bool fallback = false) const { return Get(name, fallback); }
  std::string String(const std::string& name, const std::string& fallback = "") const {
    return Get(name, fallback);
  }
  std::vector<int64_t> Ints(const std::string& name, std::vector<int64_t> fallback = {}) const {
    return Get(name, std::move(fallback));
  }
  std::vector<double> Floats(const std::string& name, std::vector<double> fallback = {}) const {
    return Get(name, std::move(fallback));
  }

  const std::map<std::string, AttributeValue>& values() const { return values_; }
  bool operator==(const Attributes&) const = default;

 private:
  template <typename T>
  T Get(const std::string& name, T fallback) const {
    auto it = values_.find(name);
    if (it == values_.end()) return fallback;
    const T* value = std::get_if<T>(&it->second);
    return value != nullptr ? *value : fallback;
  }

  std::map<std::string, AttributeValue> values_;
};

}  // namespace espalier
