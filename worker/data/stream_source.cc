#include "worker/data/stream_source.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace espalier {

absl::Status StreamSource::Prepare(const std::string& column, const TensorSpec& spec) {
  prepared_.emplace_back(column, spec);
  return absl::OkStatus();
}

StreamSource::Loader StreamSource::Read(const Part& part) const {
  absl::StatusOr<std::shared_ptr<const Dataset>> examples = open_(part.path);
  if (!examples.ok()) {
    return absl::Status(examples.status().code(),
                        absl::StrCat("the examples of steps ", part.first, " to ", part.end - 1,
                                     ", ", part.path, ": ", examples.status().message()));
  }
  const int64_t wanted = (part.end - part.first) * batch_size_;
  if ((*examples)->examples() != wanted) {
    return absl::DataLossError(absl::StrCat(part.path, " has ", (*examples)->examples(),
                                            " examples; ", wanted, " were pushed"));
  }
  BatchLoaderOptions options;
  options.batch_size = batch_size_;
  options.shuffle = false;
  Loader loader = BatchLoader::Create(*std::move(examples), options);
  if (!loader.ok()) return loader;
  for (const auto& [column, spec] : prepared_) {
    if (absl::Status s = (*loader)->Prepare(column, spec); !s.ok()) {
      return absl::Status(s.code(), absl::StrCat("the examples of steps ", part.first, " to ",
                                                 part.end - 1, ": ", s.message()));
    }
  }
  (*loader)->Prefetch(0);
  return loader;
}

absl::Status StreamSource::Choose(int64_t step) {
  const auto has_step = [step](const Part& part) {
    return !part.path.empty() && part.first <= step && step < part.end;
  };
  if (has_step(current_)) return absl::OkStatus();
  const auto part = std::find_if(parts_.begin(), parts_.end(), has_step);
  if (part == parts_.end()) {
    return absl::InternalError(absl::StrCat("the run names no examples of step ", step));
  }
  Loader loader = has_step(next_) && loading_.valid() ? loading_.get() : Read(*part);
  if (!loader.ok()) return loader.status();
  loader_ = *std::move(loader);
  current_ = *part;
  next_ = Part();
  if (const auto after = part + 1; after != parts_.end()) {
    next_ = *after;
    loading_ = std::async(std::launch::async, [this, later = *after] { return Read(later); });
  }
  return absl::OkStatus();
}

absl::Status StreamSource::Load(const std::string& column, const TensorSpec& spec, int64_t step,
                                void* host) {
  if (absl::Status s = Choose(step); !s.ok()) return s;
  return loader_->Load(column, spec, step - current_.first, host);
}

}  // namespace espalier
