// Thompson's construction (K. Thompson, "Regular Expression Search Algorithm", 1968): the
// fragment of a nondeterministic automaton that an expression stands for, joined to what is there
// already. What a node is, and what stands on its edges, is the deriving class's matter.
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
  // Repetition counts multiply nodes, and a body without nodes multiplies steps alone: more than
  // these of either is `too_large`.
  ThompsonBuilder(int64_t max_nodes, int64_t max_steps, absl::Status too_large)
      : max_nodes_(max_nodes), max_steps_(max_steps), too_large_(std::move(too_large)) {}
  virtual ~ThompsonBuilder() = default;

  // Numbered in the order of the calls. The first again once there are too many.
  int32_t NewNode();
  // From one node to another without a character.
  virtual void AddEpsilon(int32_t from, int32_t to) = 0;
  // Adds the expression's fragment from this node and returns the node behind it.
  int32_t Add(const Expression& e, int32_t from);

  int64_t num_nodes() const { return nodes_; }
  int64_t steps() const { return steps_; }
  // The first failure; behind it the nodes mean nothing.
  const absl::Status& status() const { return status_; }

 protected:
  virtual void AppendNode() = 0;
  // Each returns the node behind it.
  virtual int32_t AddLiteral(absl::string_view bytes, int32_t from) = 0;
  virtual int32_t AddClass(const CodePoints& points, int32_t from) = 0;
  virtual int32_t AddCall(const std::string& rule, int32_t from) = 0;
  virtual int32_t AddChoice(const std::vector<Expression>& parts, int32_t from);
  // `count` copies of a repeated part, each of `size` nodes, were added from node `first` on.
  virtual void Copied(int32_t /*first*/, int32_t /*size*/, int32_t /*count*/) {}

  // Counts steps; false: there are too many, or something has failed before.
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
