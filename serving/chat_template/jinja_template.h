// The subset of Jinja2 that chat templates use. Evaluates as Jinja2 does with transformers'
// settings (immutable sandbox, trim_blocks, lstrip_blocks, loop controls, raise_exception,
// strftime_now, tojson that writes plain JSON), within bounds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace espalier::jinja {

struct Node;

struct RenderOptions {
  int64_t max_steps = 5'000'000;              // nodes evaluated, items and characters visited
  size_t max_work_bytes = size_t{512} << 20;  // of all intermediate texts and lists
  size_t max_output_bytes = size_t{16} << 20;
  // Formats the current date with a strftime format. If it is not set, strftime_now is an error.
  std::function<std::string(const std::string& format)> strftime_now;
};

// Immutable and thus thread-safe.
class Template {
 public:
  // Returns InvalidArgument or Unimplemented with the line of the error.
  static absl::StatusOr<Template> Parse(absl::string_view source);

  // REQUIRES: `variables` is an object. Returns InvalidArgument with the line if the template
  // raises an exception or evaluation fails, ResourceExhausted if a bound is exceeded.
  absl::StatusOr<std::string> Render(const nlohmann::ordered_json& variables,
                                     const RenderOptions& options) const;

 private:
  explicit Template(std::shared_ptr<const Node> root) : root_(std::move(root)) {}
  std::shared_ptr<const Node> root_;
};

}  // namespace espalier::jinja
