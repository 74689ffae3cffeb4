// What owners have used of the workers lately, by which their jobs take turns: seconds of devices,
// of which half count no more after a day. No clock, no threads.
#pragma once

#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace espalier {

struct FairShareOptions {
  absl::Duration half_life = absl::Hours(24);
  // A device that an owner's jobs hold counts as if it were used for so long already. Without it,
  // the owner with the least usage would get all workers that are idle at one moment.
  absl::Duration in_advance = absl::Hours(1);
};

class FairShare {
 public:
  explicit FairShare(FairShareOptions options = {}) : options_(options) {}

  // The owner's jobs have begun (or ended, if negative) to hold so many devices.
  void Hold(const std::string& owner, int devices);
  // So many seconds of devices were used until `now`, which never goes back by much.
  void Charge(const std::string& owner, double device_seconds, absl::Time now);
  // The smaller, the sooner the owner's next job starts. Two owners' values can be compared if they
  // are of the same `now`.
  double Usage(const std::string& owner, absl::Time now) const;

  // What was charged, as text, so that it outlives the coordinator; not what is held.
  std::string Save(absl::Time now) const;
  // Returns DataLoss, changing nothing, for what Save has not written.
  absl::Status Load(absl::string_view text);

 private:
  struct Owner {
    double seconds = 0;  // as of `at`
    absl::Time at = absl::UnixEpoch();
    int held = 0;
  };
  double Decayed(const Owner& owner, absl::Time now) const;

  FairShareOptions options_;
  std::map<std::string, Owner> owners_;
};

}  // namespace espalier
