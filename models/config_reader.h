// Reads the fields of a config.json. The first error sticks; later calls return their defaults, so
// that a family's file reads all it wants and asks once. Null and absent are the same unless
// said.
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
  // InvalidArgument for what is no JSON object of at most 1 MiB and 64 levels. `file` is its name
  // in all messages.
  static absl::StatusOr<ConfigReader> Parse(absl::string_view text,
                                            const std::string& file = "config.json");

  bool Has(const std::string& field) const;
  // Also if it is null, where that means "none" and a missing field does not.
  bool Named(const std::string& field) const;
  // Sizes: 1 to 2^24 (so that no product of three overflows), an error otherwise.
  int64_t Size(const std::string& field);
  int64_t Size(const std::string& field, int64_t otherwise);
  // An integer within [least, most].
  int64_t Int(const std::string& field, int64_t otherwise, int64_t least, int64_t most);
  double Number(const std::string& field, double otherwise);
  double Positive(const std::string& field, double otherwise);  // finite and above 0
  bool Flag(const std::string& field, bool otherwise);
  std::string Text(const std::string& field, const std::string& otherwise);
  std::vector<double> Numbers(const std::string& field);  // empty if it is not there
  std::vector<int64_t> Ints(const std::string& field);
  std::vector<std::string> Texts(const std::string& field);
  // One token id or a list of them.
  std::vector<int> TokenIds(const std::string& field);
  // The object in a field; an empty one if it is not there.
  ConfigReader Object(const std::string& field);

  // From here on the field is `value` where it is not there.
  void Default(const std::string& field, int64_t value);

  // Switches of which only one setting is supported: Unimplemented for any other.
  void OnlyFlag(const std::string& field, bool supported, bool otherwise);
  void OnlyText(const std::string& field, const std::vector<std::string>& supported);
  void OnlyAbsent(const std::string& field, absl::string_view because);

  // A switch that must be absent, null, false or empty.
  void OnlyOff(const std::string& field);
  // The same for every field that is not among these: what nobody here knows may change the
  // mathematics.
  void OthersOff(const std::vector<std::string>& known);

  bool IsText(const std::string& field) const;

  // The first of the fields that is there, or the first one: for aliases.
  std::string OneOf(const std::vector<std::string>& fields) const;

  // InvalidArgument or, if `unsupported`, Unimplemented: what the field holds and what would be
  // accepted.
  void Refuse(const std::string& field, absl::string_view accepted, bool unsupported = false);
  void Fail(absl::Status status);
  absl::Status status() const;

 private:
  struct State;
  explicit ConfigReader(std::shared_ptr<State> state) : state_(std::move(state)) {}

  std::shared_ptr<State> state_;
};

}  // namespace espalier
