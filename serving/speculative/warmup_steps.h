// Identifies the first steps after a change between drafting and not drafting. They find other data
// in the CPU caches and take up to 1.4 times as long.
#pragma once

#include <utility>

namespace espalier {

class WarmupSteps {
 public:
  // Returns true if this step, in which an SSM drafts or not, is such a step. `matter` is called at
  // a change and returns whether there are any.
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
