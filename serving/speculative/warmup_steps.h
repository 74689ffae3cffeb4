// The first steps after a change between drafting and not: they find other things in the caches
// than those that follow, and take up to 1.4 times as long.
#pragma once

#include <utility>

namespace espalier {

class WarmupSteps {
 public:
  // Whether the step, in which an SSM drafts or not, is one of them. `matter` is asked at a change:
  // whether there are any.
  template <typename Matter>
  bool Observe(bool drafts, Matter matter) {
    if (std::exchange(drafts_, drafts) != drafts) {
      left_ = !matter() ? 0 : drafts ? kDrafts : kPlain;
    }
    return left_ > 0 && left_-- > 0;
  }
  bool Observe(bool drafts) {
    return Observe(drafts, [] { return true; });
  }

 private:
  static constexpr int kPlain = 2, kDrafts = 1;

  bool drafts_ = false;  // the last step
  int left_ = 0;
};

}  // namespace espalier
