#include "serving/grammar/thompson.h"

namespace espalier {

int32_t ThompsonBuilder::NewNode() {
  if (nodes_ >= max_nodes_) {
    Fail(too_large_);
    return 0;
  }
  AppendNode();
  return static_cast<int32_t>(nodes_++);
}

int32_t ThompsonBuilder::Add(const Expression& e, int32_t from) {
  if (!Spend(1)) return from;
  switch (e.kind) {
    case Expression::kLiteral:
      return AddLiteral(e.text, from);
    case Expression::kClass:
      return AddClass(e.points, from);
    case Expression::kSequence:
      for (const Expression& part : e.parts) from = Add(part, from);
      return from;
    case Expression::kChoice:
      return AddChoice(e.parts, from);
    case Expression::kRepeat:
      return AddRepeat(e, from);
    case Expression::kRule:
      return AddCall(e.text, from);
  }
  return from;
}

int32_t ThompsonBuilder::AddChoice(const std::vector<Expression>& parts, int32_t from) {
  const int32_t to = NewNode();
  for (const Expression& part : parts) {
    const int32_t begin = NewNode();
    AddEpsilon(from, begin);
    AddEpsilon(Add(part, begin), to);
  }
  return to;
}

// `count` copies in sequence. With `end`, there is an epsilon to it before each copy.
int32_t ThompsonBuilder::AddCopies(const Expression& part, int count, int32_t from,
                                   const int32_t* end) {
  const int64_t first = nodes_;
  int64_t size = 0;
  for (int i = 0; i < count && status_.ok(); ++i) {
    from = Add(part, from);
    if (end != nullptr) AddEpsilon(from, *end);
    if (i == 0) size = nodes_ - first;
  }
  if (status_.ok() && count > 1 && size > 0) {
    OnCopies(static_cast<int32_t>(first), static_cast<int32_t>(size), count);
  }
  return from;
}

int32_t ThompsonBuilder::AddRepeat(const Expression& e, int32_t from) {
  const Expression& part = e.parts[0];
  from = AddCopies(part, e.least, from, nullptr);
  if (e.most < 0) {
    const int32_t loop = NewNode();
    AddEpsilon(from, loop);
    AddEpsilon(Add(part, loop), loop);
    return loop;
  }
  const int32_t end = NewNode();
  AddEpsilon(from, end);
  AddCopies(part, e.most - e.least, from, &end);
  return end;
}

bool ThompsonBuilder::Spend(int64_t steps) {
  steps_ += steps;
  if (steps_ > max_steps_) Fail(too_large_);
  return status_.ok();
}

void ThompsonBuilder::Fail(absl::Status status) {
  if (status_.ok()) status_ = std::move(status);
}

}  // namespace espalier
