#include "base/json/bounded_json.h"

#include <type_traits>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

// The parser quotes what it has read, which need not be UTF-8; the text of a message must be.
std::string Printable(absl::string_view error) {
  std::string out;
  for (const char c : error) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x80) {
      out += c;
    } else {
      absl::StrAppend(&out, "\\x", absl::Hex(byte));
    }
  }
  return out;
}

// Builds the value from the parser's events and stops at a limit.
template <typename Json>
class Builder : public nlohmann::json_sax<Json> {
 public:
  Builder(const JsonLimits& limits, std::string* twice) : limits_(limits), twice_(twice) {}

  bool null() override { return Add(Json()); }
  bool boolean(bool value) override { return Add(Json(value)); }
  bool number_integer(typename Json::number_integer_t value) override { return Add(Json(value)); }
  bool number_unsigned(typename Json::number_unsigned_t value) override { return Add(Json(value)); }
  bool number_float(typename Json::number_float_t value, const typename Json::string_t&) override {
    return Add(Json(value));
  }
  bool string(typename Json::string_t& value) override { return Add(Json(std::move(value))); }
  bool binary(typename Json::binary_t&) override { return Fail("holds binary data"); }

  bool start_object(size_t) override { return Open(Json::object()); }
  bool end_object() override { return Close(); }
  bool start_array(size_t) override { return Open(Json::array()); }
  bool end_array() override { return Close(); }
  bool key(typename Json::string_t& name) override {
    name_ = std::move(name);
    const Container& around = open_.back();
    if (around.wide) {
      return around.value->size() < limits_.fields_of_wide ||
             Fail(absl::StrCat("has more than ", limits_.fields_of_wide, " fields in '",
                               limits_.wide, "'"));
    }
    if (++fields_ > limits_.fields || around.value->size() >= limits_.fields_of_object) {
      return Fail(absl::StrCat("has more than ", limits_.fields_of_object,
                               " fields in one object, or ", limits_.fields, " in all"));
    }
    return true;
  }

  bool parse_error(size_t, const std::string&, const typename Json::exception& e) override {
    return Fail(absl::StrCat("is not valid JSON: ", Printable(e.what())));
  }

  const std::string& problem() const { return problem_; }
  Json TakeRoot() { return std::move(root_); }

 private:
  static constexpr bool kOrdered = std::is_same_v<Json, nlohmann::ordered_json>;

  struct Container {
    Json* value;  // stable: its parents do not change while it is open
    absl::flat_hash_map<std::string, size_t> places;  // field positions of an ordered object
    bool wide = false;
  };

  bool Fail(std::string problem) {
    problem_ = std::move(problem);
    return false;
  }

  bool Add(Json value) {
    if (!Count(value.is_number())) return false;
    Put(std::move(value));
    return true;
  }

  bool Count(bool is_number) {
    if (++values_ > limits_.values) {
      return Fail(absl::StrCat("has more than ", limits_.values, " values"));
    }
    others_ += !is_number;
    if (others_ <= limits_.values_but_numbers) return true;
    return Fail(
        absl::StrCat("has more than ", limits_.values_but_numbers, " values that are no numbers"));
  }

  bool Open(Json empty) {
    if (static_cast<int>(open_.size()) >= limits_.depth) {
      return Fail(absl::StrCat("nests deeper than ", limits_.depth, " levels"));
    }
    if (!Count(false)) return false;
    const bool wide = open_.size() == 1 && open_[0].value->is_object() && !limits_.wide.empty() &&
                      name_ == limits_.wide && empty.is_object();
    Json* const value = Put(std::move(empty));
    open_.push_back({value, {}, wide});
    return true;
  }

  bool Close() {
    open_.pop_back();
    return true;
  }

  Json* Put(Json value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Container& around = open_.back();
    if (around.value->is_array()) {
      auto& items = around.value->template get_ref<typename Json::array_t&>();
      return &items.emplace_back(std::move(value));
    }
    return PutField(around, std::move(value));
  }

  Json* PutField(Container& around, Json value) {
    auto& fields = around.value->template get_ref<typename Json::object_t&>();
    if constexpr (kOrdered) {
      // ordered_json's own lookup is linear.
      const auto [known, is_new] = around.places.try_emplace(name_, fields.size());
      if (is_new) {
        fields.push_back({std::move(name_), std::move(value)});
        return &fields.back().second;
      }
      return Replace(&fields.begin()[static_cast<std::ptrdiff_t>(known->second)].second,
                     std::move(value));
    } else {
      const auto [known, is_new] = fields.try_emplace(name_);
      if (!is_new) return Replace(&known->second, std::move(value));
      known->second = std::move(value);
      return &known->second;
    }
  }

  Json* Replace(Json* old, Json value) {
    if (twice_ != nullptr && twice_->empty()) *twice_ = name_;
    *old = std::move(value);
    return old;
  }

  const JsonLimits& limits_;
  std::string* const twice_;
  Json root_;
  std::vector<Container> open_;
  std::string name_;  // of the next value's field
  size_t fields_ = 0, values_ = 0, others_ = 0;
  std::string problem_;
};

}  // namespace

template <typename Json>
absl::StatusOr<Json> ParseBoundedJson(absl::string_view text, const JsonLimits& limits,
                                      std::string* twice) {
  Builder<Json> builder(limits, twice);
  if (!Json::sax_parse(text.begin(), text.end(), &builder)) {
    return absl::InvalidArgumentError(builder.problem());
  }
  return builder.TakeRoot();
}

template absl::StatusOr<nlohmann::json> ParseBoundedJson(absl::string_view, const JsonLimits&,
                                                         std::string*);
template absl::StatusOr<nlohmann::ordered_json> ParseBoundedJson(absl::string_view,
                                                                 const JsonLimits&, std::string*);

}  // namespace espalier
