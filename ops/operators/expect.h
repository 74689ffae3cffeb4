// Checks for OpDef::infer, with one wording for all operators:
//   linear: input 'weight' has shape [3, 4], expected [out, 128] because 'x' ends in 128
// Each returns OK or InvalidArgument. Use with ESPALIER_RETURN_IF_ERROR, in an order in which no
// check reads a dimension before an earlier check established it.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "ops/schema/op_def.h"

#ifndef ESPALIER_RETURN_IF_ERROR
#define ESPALIER_RETURN_IF_ERROR(expression)                                \
  do {                                                                      \
    if (absl::Status status_ = (expression); !status_.ok()) return status_; \
  } while (false)
#endif

namespace espalier {

// Returns InvalidArgument "<op>: <message>".
absl::Status OpError(absl::string_view op, absl::string_view message);

// An input of the node under inference. `op` and `name` go into messages.
struct InputRef {
  absl::string_view op;
  absl::string_view name;
  const TensorType& type;
};

absl::Status ExpectDType(const InputRef& input, std::initializer_list<DType> allowed);
absl::Status ExpectFloat(const InputRef& input);    // f32, bf16, f16
absl::Status ExpectInteger(const InputRef& input);  // i32, i64

// Checks that both inputs have the same element type.
absl::Status ExpectSameDType(const InputRef& input, const InputRef& other);

// Checks that both inputs have the same element type and shape.
absl::Status ExpectSameType(const InputRef& input, const InputRef& other);

absl::Status ExpectRank(const InputRef& input, int rank);
absl::Status ExpectRankAtLeast(const InputRef& input, int rank);

// A dimension of known size (128), or a free one with a name ("out").
struct ExpectedDim {
  ExpectedDim(int64_t size) : size(size) {}
  ExpectedDim(const char* name) : name(name) {}
  int64_t size = -1;
  std::string name;
};

// Checks that the input has exactly these dimensions. `because` completes the message "... because
// <because>"; may be empty.
absl::Status ExpectShape(const InputRef& input, const std::vector<ExpectedDim>& expected,
                         absl::string_view because = "");

// Returns `axis` in [0, rank); negative ones count from the end.
absl::StatusOr<int> NormalizeAxis(absl::string_view op, absl::string_view attribute, int64_t axis,
                                  int rank);

// Broadcasts two shapes by numpy's rules. Returns InvalidArgument with both if they do not match.
absl::StatusOr<Dims> BroadcastDims(absl::string_view op, const Dims& a, const Dims& b);

// "linear: attribute 'groups' is 0, expected <expected>".
absl::Status AttributeError(absl::string_view op, absl::string_view attribute,
                            absl::string_view found, absl::string_view expected);

absl::Status ExpectPositive(absl::string_view op, absl::string_view attribute, int64_t value);

// Checks for exactly `size` values, each at least `least`.
absl::Status ExpectInts(absl::string_view op, absl::string_view attribute,
                        const std::vector<int64_t>& values, size_t size, int64_t least);

// Appends axes "sample", "dim1", "dim2", ... for dimensions 0 to count - 1 of `dims` to rule->axes.
// Returns the map from dimension to axis.
std::vector<int> AddLeadingAxes(const Dims& dims, size_t count, SplitRule* rule);

// The bytes of all operands.
double OperandBytes(const NodeTypes& types);

}  // namespace espalier
