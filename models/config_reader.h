// Reads the fields of a config.json. The first error sticks and later calls return their defaults,
// so that a family reads all its fields and checks once. Null equals absent unless stated
// otherwise. Remembers which fields were asked for, so that none is left out by oversight.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace espalier {

class ConfigReader {
 public:
  // Returns InvalidArgument if the text is not a JSON object of at most 1 MiB and 64 levels. `file`
  // is the name used in all messages.
  static absl::StatusOr<ConfigReader> Parse(absl::string_view text,
                                            const std::string& file = "config.json");

  bool Has(const std::string& field) const;
  // Like Has, but also true for null, where null means "none" and a missing field does not.
  bool HasOrIsNull(const std::string& field) const;
  // Sizes must be 1 to 2^24, so that no product of three overflows.
  int64_t Size(const std::string& field);
  int64_t Size(const std::string& field, int64_t otherwise);
  // An integer within [least, most].
  int64_t Int(const std::string& field, int64_t otherwise, int64_t least, int64_t most);
  double Number(const std::string& field, double otherwise);
  double Positive(const std::string& field, double otherwise);  // finite and above 0
  bool Flag(const std::string& field, bool otherwise);
  std::string Text(const std::string& field, const std::string& otherwise);
  std::vector<double> Numbers(const std::string& field);  // empty if absent
  std::vector<int64_t> Ints(const std::string& field);
  std::vector<std::string> Texts(const std::string& field);
  // A token id or a list of them.
  std::vector<int> TokenIds(const std::string& field);
  // The object in a field; empty if absent.
  ConfigReader Object(const std::string& field);

  // Sets the value of the field for later calls if it is absent.
  void Default(const std::string& field, int64_t value);
  void DefaultFlag(const std::string& field, bool value);

  // For switches with one supported setting: Unimplemented for any other.
  void RequireFlag(const std::string& field, bool supported, bool otherwise);
  void RequireText(const std::string& field, const std::vector<std::string>& supported);
  void RequireAbsent(const std::string& field, absl::string_view because);

  // For a switch that must be absent, null, false or empty.
  void RequireOff(const std::string& field);
  // RequireOff for every field not in `known`, because an unknown field may change the mathematics.
  void RequireOthersOff(const std::vector<std::string>& known);
  // Fields that change nothing in this family, whatever they hold.
  void Ignore(const std::vector<std::string>& fields);
  // Unimplemented if a field, also of an object that was read, was never asked for, is none of
  // those that change no model's results (dropout, initialization, special tokens, ...) and is not
  // off: null, false, 0 or empty. Call after all other reads.
  void RequireAllRead();

  bool IsText(const std::string& field) const;

  // Returns the first of the fields that is present, or fields[0]: for aliases. Fails if others of
  // them hold something else.
  std::string OneOf(const std::vector<std::string>& fields);

  // Fails with InvalidArgument or, if `unsupported`, Unimplemented; the message says what the field
  // holds and what would be accepted.
  void Refuse(const std::string& field, absl::string_view accepted, bool unsupported = false);
  void Fail(absl::Status status);
  absl::Status status() const;

 private:
  struct State;
  explicit ConfigReader(std::shared_ptr<State> state) : state_(std::move(state)) {}
  ConfigReader Nested(const std::string& field) const;

  std::shared_ptr<State> state_;
};

}  // namespace espalier
