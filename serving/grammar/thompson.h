// Thompson's construction (K. Thompson, "Regular Expression Search Algorithm", 1968): turns an
// expression into a fragment of a nondeterministic automaton. The derived class owns the nodes and
// edges.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "serving/grammar/grammar.h"

namespace espalier {

class ThompsonBuilder {
 public:
  // Fails with `too_large` beyond `max_nodes` or `max_steps`. Repetition counts multiply nodes; a
  // repeated part without nodes multiplies steps only.
  ThompsonBuilder(int64_t max_nodes, int64_t max_steps, absl::Status too_large)
      : max_nodes_(max_nodes), max_steps_(max_steps), too_large_(std::move(too_large)) {}
  virtual ~ThompsonBuilder() = default;

  // Nodes are numbered in order of creation. Returns node 0 once there are too many.
  int32_t NewNode();
  // Adds an epsilon edge.
  virtual void AddEpsilon(int32_t from, int32_t to) = 0;
  // Adds the fragment of the expression behind `from` and returns its last node.
  int32_t Add(const Expression& e, int32_t from);

  int64_t num_nodes() const { return nodes_; }
  int64_t steps() const { return steps_; }
  // The first error; after it the nodes are meaningless.
  const absl::Status& status() const { return status_; }

 protected:
  virtual void AppendNode() = 0;
  // Each returns the last node of the fragment.
  virtual int32_t AddLiteral(absl::string_view bytes, int32_t from) = 0;
  virtual int32_t AddClass(const CodePoints& points, int32_t from) = 0;
  virtual int32_t AddCall(const std::string& rule, int32_t from) = 0;
  virtual int32_t AddChoice(const std::vector<Expression>& parts, int32_t from);
  // Called after `count` copies of a repeated part, of `size` nodes each, were added from `first`
  // on.
  virtual void OnCopies(int32_t /*first*/, int32_t /*size*/, int32_t /*count*/) {}

  // Counts steps. Returns false if there are too many or an earlier call has failed.
  bool Spend(int64_t steps);
  void Fail(absl::Status status);

 private:
  int32_t AddRepeat(const Expression& e, int32_t from);
  int32_t AddCopies(const Expression& part, int count, int32_t from, const int32_t* end);

  const int64_t max_nodes_, max_steps_;
  const absl::Status too_large_;
  int64_t nodes_ = 0, steps_ = 0;
  absl::Status status_;
};

}  // namespace espalier
