// The difference of two plans, for `espalier plan diff`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "espalier/v1/plan.pb.h"

namespace espalier {

// An operator that one plan lacks, or whose configuration differs. The side that lacks it is empty.
struct OperatorChange {
  enum Kind { kOnlyInA, kOnlyInB, kChanged };
  struct Side {
    std::string op;
    std::string split;  // "sample×4", "whole"
    std::vector<int> devices;
    double seconds = 0;  // predicted, forward and backward
    bool operator==(const Side&) const = default;
  };
  Kind kind = kChanged;
  std::string node;
  Side a, b;
  bool operator==(const OperatorChange&) const = default;
};

// A device, by its index in the plans. Empty text: that plan has no such device.
struct DeviceChange {
  int index = 0;
  std::string a, b;  // "CUDA NVIDIA H200, 139.8 GiB, 5e+13 FLOP/s, 4.2e+12 B/s"
  bool operator==(const DeviceChange&) const = default;
};

// Layout conversions of one kind and degree: on edges (tensor and consumer) that only one plan has,
// and on edges of both that move different amounts.
struct ParallelChange {
  std::string kind;          // "combine ×4"
  int removed = 0;           // edges of A only
  int added = 0;             // edges of B only
  int altered = 0;           // edges of both
  double removed_bytes = 0;  // per step
  double added_bytes = 0;
  double altered_bytes = 0;  // of B minus A
  bool operator==(const ParallelChange&) const = default;
};

// A predicted number of both plans, equal or not.
struct NumberPair {
  enum Unit { kSeconds, kBytes };
  std::string name;  // "step"
  Unit unit = kSeconds;
  double a = 0, b = 0;
  bool operator==(const NumberPair&) const = default;
};

// Compared as text, because seeds have more digits than a double.
struct TextPair {
  std::string name;
  std::string a, b;
  bool operator==(const TextPair&) const = default;
};

// An alternative by name; a side is absent if that plan does not list it.
struct AlternativeChange {
  struct Side {
    double step_seconds = 0;
    bool fits = true;  // false: refused, for any reason
    bool operator==(const Side&) const = default;
  };
  std::string name;
  std::optional<Side> a, b;
  bool operator==(const AlternativeChange&) const = default;
};

struct PlanDiff {
  std::vector<TextPair> identity;  // graph, format: only differences
  std::vector<TextPair> step;      // stages, micro-batches, ZeRO, swaps ...: only differences
  int64_t batch_a = 0, batch_b = 0;
  std::vector<DeviceChange> devices;      // only differences, by index
  std::vector<OperatorChange> operators;  // only differences, in the order of A, then of B
  int operators_a = 0, operators_b = 0;
  // Operators with equal split and placement but different predicted time.
  int retimed = 0;
  double retimed_seconds = 0;                   // sum of the differences, B minus A
  std::vector<ParallelChange> parallel;         // only differences
  std::vector<NumberPair> prediction;           // all of them
  std::vector<AlternativeChange> alternatives;  // only differences
  std::vector<TextPair> search;                 // settings and outcome: only differences

  bool equal() const;  // nothing differs
};

// Compares two plans, which may be of different graphs. Ignores search durations, as they always
// differ.
PlanDiff DiffPlans(const v1::Plan& a, const v1::Plan& b);

// Renders a text table like RenderPlan's; one line if the plans are equal. Repeated layers with the
// same change share a line. `name_a` and `name_b` identify the plans: files, jobs.
std::string RenderPlanDiff(const PlanDiff& diff, absl::string_view name_a,
                           absl::string_view name_b);

// The same as indented JSON with the field names above. Invalid UTF-8 becomes U+FFFD; numbers that
// JSON cannot represent are null.
std::string PlanDiffToJson(const PlanDiff& diff, absl::string_view name_a,
                           absl::string_view name_b);

}  // namespace espalier
