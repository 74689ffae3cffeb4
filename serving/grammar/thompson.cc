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
  if (++steps_ > max_steps_) Fail(too_large_);
  if (!status_.ok()) return from;
  switch (e.kind) {
    case Expression::kLiteral:
      return AddLiteral(e.text, from);
    case Expression::kClass:
      return AddClass(e.points, from);
    case Expression::kSequence:
      for (const Expression& part : e.parts) from = Add(part, from);
      return from;
    case Expression::kChoice: {
      const int32_t to = NewNode();
      for (const Expression& part : e.parts) {
        const int32_t begin = NewNode();
        Jump(from, begin);
        Jump(Add(part, begin), to);
      }
      return to;
    }
    case Expression::kRepeat:
      return AddRepeat(e, from);
    case Expression::kRule:
      return AddCall(e.text, from);
  }
  return from;
}

int32_t ThompsonBuilder::AddRepeat(const Expression& e, int32_t from) {
  const Expression& part = e.parts[0];
  for (int i = 0; i < e.least && status_.ok(); ++i) from = Add(part, from);
  if (e.most < 0) {
    const int32_t loop = NewNode();
    Jump(from, loop);
    Jump(Add(part, loop), loop);
    return loop;
  }
  const int32_t end = NewNode();
  Jump(from, end);
  for (int i = e.least; i < e.most && status_.ok(); ++i) {
    from = Add(part, from);
    Jump(from, end);
  }
  return end;
}

void ThompsonBuilder::Fail(absl::Status status) {
  if (status_.ok()) status_ = std::move(status);
}

}  // namespace espalier
