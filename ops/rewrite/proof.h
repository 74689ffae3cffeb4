// The numerical proof of a rewrite rule: its example, run before and after, forward and backward.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ops/kernel/kernel.h"
#include "ops/rewrite/rule.h"

namespace espalier {

// The bytes of every value of a bound graph, by id, run node by node on numbers drawn from `seed`:
// values of the same name are fed the same in every graph. InvalidArgument names the node for which
// there is no kernel, or which fails.
absl::StatusOr<std::vector<std::string>> Evaluate(const KernelRegistry& kernels, const Graph& graph,
                                                  int seed);

// The named outputs of a bound graph and the gradients of its trainable parameters, by name, when
// each element of each output adds to the loss with a weight of its own.
absl::StatusOr<std::map<std::string, std::vector<float>>> OutputsAndGradients(
    const OpRegistry& registry, const KernelRegistry& kernels, const Graph& graph, int seed);

// That two graphs have the same outputs and gradients, to `tolerance` of the largest element of
// each. InvalidArgument names the first one that differs, with both numbers.
absl::Status CheckSame(const OpRegistry& registry, const KernelRegistry& kernels,
                       const Graph& before, const Graph& after, int seed, double tolerance = 1e-5);

// That `rule` does at its example what it says: with and without optional inputs, on several sets
// of random numbers. InvalidArgument names the rule and what differs, or why it cannot be run.
absl::Status ProveRule(const OpRegistry& registry, const KernelRegistry& kernels,
                       const RewriteRule& rule);

// The rules of a text that someone else wrote, each proven. InvalidArgument as ParseRules and
// ProveRule, and for FlexFlow's JSON, which is not read.
absl::StatusOr<std::vector<RewriteRule>> ReadProvenRules(const OpRegistry& registry,
                                                         const KernelRegistry& kernels,
                                                         const std::string& text);

}  // namespace espalier
