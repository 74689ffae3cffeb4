// Numerical verification of rewrite rules: runs a rule's example before and after, forward and
// backward.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ops/kernel/kernel.h"
#include "ops/rewrite/rule.h"

namespace espalier {

// Runs a bound graph node by node on random inputs drawn from `seed` and returns the bytes of every
// value by id. Values of the same name get the same inputs in every graph. Returns InvalidArgument
// with the node that fails or has no kernel.
absl::StatusOr<std::vector<std::string>> Evaluate(const KernelRegistry& kernels, const Graph& graph,
                                                  int seed);

// Returns by name the outputs of a bound graph and the gradients of its trainable parameters, for a
// loss that weights each element of each output differently.
absl::StatusOr<std::map<std::string, std::vector<float>>> OutputsAndGradients(
    const OpRegistry& registry, const KernelRegistry& kernels, const Graph& graph, int seed);

// Checks that two graphs have the same outputs and gradients, to `tolerance` of the largest element
// of each. Returns InvalidArgument with the first difference and both numbers.
absl::Status CheckSame(const OpRegistry& registry, const KernelRegistry& kernels,
                       const Graph& before, const Graph& after, int seed, double tolerance = 1e-5);

// Checks `rule` at its example, with and without optional inputs, on several sets of random
// numbers. Returns InvalidArgument with the rule and the difference, or why it cannot run.
absl::Status ProveRule(const OpRegistry& registry, const KernelRegistry& kernels,
                       const RewriteRule& rule);

// Parses and verifies a user's rules. Errors as ParseRules and ProveRule; InvalidArgument for
// FlexFlow's JSON rules, which are not supported.
absl::StatusOr<std::vector<RewriteRule>> ReadProvenRules(const OpRegistry& registry,
                                                         const KernelRegistry& kernels,
                                                         const std::string& text);

}  // namespace espalier
